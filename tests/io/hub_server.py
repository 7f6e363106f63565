#!/usr/bin/env python3
"""A server on loopback that speaks the hub's URLs, with faults on demand. For tests/io/hub_test.cpp.

Usage: hub_server.py ROOT. ROOT holds models/ORG/NAME/... and datasets/ORG/NAME/...; what lies there is the commit of
every branch. Prints "HUB_PORT CDN_PORT" and serves until its standard input ends. Large files (by extension) are
redirected to the second port, as the hub redirects to its storage.

  GET /_fault?path=P&kind=K&count=N[&value=V]   the next N requests of the file P: status (V), cut (after V bytes),
                                                corrupt, norange, stall (for V seconds); of api/tree: path (lists V);
                                                of api/revision: redirect (to V, or to itself), headers (of V bytes)
  GET /_log                                     requests so far: [port name, path, Range, Authorization]
"""
import hashlib
import http.server
import json
import os
import pathlib
import sys
import threading
import time
import urllib.parse

LARGE = (".parquet", ".safetensors", ".bin")
PAGE = 2
root = pathlib.Path(sys.argv[1])
faults = []
log = []
lock = threading.Lock()


def repo_files(kind, repo):
    folder = root / kind / repo
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def commit_of(kind, repo):
    return hashlib.sha1(json.dumps(
        {name: hashlib.sha1(data).hexdigest() for name, data in repo_files(kind, repo).items()}).encode()).hexdigest()


def tree_entry(name, data):
    if name.endswith(LARGE):
        pointer = b"pointer " + name.encode()
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(pointer).hexdigest(),
                "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": blob}


def take_fault(path):
    with lock:
        for fault in faults:
            if fault["path"] == path and fault["count"] > 0:
                fault["count"] -= 1
                return fault
    return None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def reply_json(self, value, headers=None):
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        if parts == ["_fault"]:
            with lock:
                faults.append({**query, "count": int(query["count"])})
            return self.reply_json({})
        if parts == ["_log"]:
            return self.reply_json(log)
        with lock:
            log.append([self.server.name, self.path, self.headers.get("Range", ""),
                        self.headers.get("Authorization", "")])
        if self.server.name == "cdn":
            return self.send_file(parts[1], "/".join(parts[2:4]), "/".join(parts[4:]))
        is_api = parts[0] == "api"
        kind = "models"
        if is_api:
            kind, parts = parts[1], parts[2:]
        elif parts[0] == "datasets":
            kind, parts = parts[0], parts[1:]
        repo, rest = "/".join(parts[:2]), parts[2:]
        if repo.startswith("private/") and self.headers.get("Authorization") != "Bearer good-token":
            return self.reply(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        if not (root / kind / repo).is_dir():
            return self.reply(404, b"{}", {"X-Error-Message": "Repository not found"})
        if is_api:
            return self.send_api(kind, repo, rest, query)
        name = "/".join(rest[2:])
        if rest[0] != "resolve" or rest[1] not in (commit_of(kind, repo), "main"):
            return self.reply(404, b"", {"X-Error-Message": "Invalid rev id"})
        if name.endswith(LARGE):
            where = f"http://127.0.0.1:{cdn.server_address[1]}/cdn/{kind}/{repo}/{urllib.parse.quote(name)}"
            return self.reply(302, b"", {"Location": where})
        return self.send_file(kind, repo, name)

    def send_api(self, kind, repo, rest, query):
        fault = take_fault(f"api/{rest[0]}")
        if fault and fault["kind"] == "path":
            return self.reply_json([{**tree_entry("x", b""), "path": fault["value"]}])
        if fault and fault["kind"] == "redirect":
            return self.reply(302, b"", {"Location": fault.get("value") or self.path})
        if fault and fault["kind"] == "headers":
            return self.reply(200, b"", {f"X-{i}": "x" * 1000 for i in range(int(fault["value"]) // 1000)})
        if fault:
            return self.reply(int(fault["value"]), b"", {"Retry-After": "0"})
        if rest[0] == "revision":
            if rest[1] not in ("main", "refs/convert/parquet", commit_of(kind, repo)):
                return self.reply(404, b"{}", {"X-Error-Message": "Invalid rev id: " + rest[1]})
            return self.reply_json({"id": repo, "sha": commit_of(kind, repo)})
        entries = [tree_entry(name, data) for name, data in repo_files(kind, repo).items()]
        entries.insert(0, {"type": "directory", "path": "data", "size": 0, "oid": "0" * 40})
        start = int(query.get("cursor", 0))
        headers = {}
        if start + PAGE < len(entries):
            here = f"http://127.0.0.1:{self.server.server_address[1]}{urllib.parse.urlparse(self.path).path}"
            headers["Link"] = f'<{here}?recursive=true&cursor={start + PAGE}>; rel="next"'
        return self.reply_json(entries[start:start + PAGE], headers)

    def send_file(self, kind, repo, name):
        data = repo_files(kind, repo).get(name)
        if data is None:
            return self.reply(404)
        fault = take_fault(name)
        what = fault["kind"] if fault else ""
        if what == "status":
            return self.reply(int(fault["value"]), b"", {"Retry-After": "0"})
        if what == "stall":
            time.sleep(float(fault["value"]))
            self.close_connection = True
            return None
        if what == "corrupt":
            data = bytes([data[0] ^ 1]) + data[1:]
        first, status, headers = 0, 200, {"Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range", "")
        if wanted and what != "norange":
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            if first >= len(data):
                return self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status = 206
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        body = data[first:]
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if what == "cut":
            self.wfile.write(body[:int(fault["value"])])
            self.close_connection = True
            return None
        self.wfile.write(body)
        return None


def serve(name):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.name = name
    server.handle_error = lambda *_: None  # a client that hangs up is part of the tests
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


hub, cdn = serve("hub"), serve("cdn")
print(hub.server_address[1], cdn.server_address[1], flush=True)
sys.stdin.read()
os._exit(0)
