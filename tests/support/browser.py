"""Drives a headless chromium through its debugging pipe: two file descriptors, so no port is opened."""
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. Collects what the page logs and every request that it makes."""

    def __init__(self, dark: bool = False, width: int = 1300, height: int = 1000):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self.write_end = os.pipe()
        self.read_end, answers = os.pipe()

        # Away from 3 and 4, which the browser expects them to be.
        far_commands, far_answers = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (commands, answers))
        os.close(commands)
        os.close(answers)

        def place() -> None:
            os.dup2(far_commands, 3)
            os.dup2(far_answers, 4)

        self.process = subprocess.Popen(
            [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", f"--window-size={width},{height}"],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(far_commands)
        os.close(far_answers)
        self.buffer, self.number = b"", 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        target = self.call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        self.session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.call("Emulation.setEmulatedMedia",
                  {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)
        self.profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _message(self, deadline: float) -> dict:
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.read_end], [], [], left)[0]:
                raise TimeoutError("the browser did not answer")
            data = os.read(self.read_end, 1 << 20)
            if not data:
                raise RuntimeError(f"the browser ended with {self.process.wait()}")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog: {params['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True
        return message

    def call(self, method: str, params: dict | None = None, session: str | None = "own", timeout: float = 60) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path: str) -> None:
        self.loaded = False
        self.call("Page.navigate", {"url": pathlib.Path(path).resolve().as_uri()})
        deadline = time.monotonic() + 60
        while not self.loaded:
            self._message(deadline)
        self.settle()

    def settle(self) -> None:
        """Until two frames are drawn: what an event has changed is then in the page."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, expression: str):
        result = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, clicks: int = 1) -> None:
        held = kind != "mouseMoved" or getattr(self, "held", False)
        self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left" if held else "none",
                                               "buttons": 1 if held and kind != "mouseReleased" else 0, "clickCount": clicks})

    def move(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)
        self.settle()

    def drag(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.mouse("mouseMoved", x1, y1)
        self.mouse("mousePressed", x1, y1)
        self.held = True
        for i in range(1, 6):
            self.mouse("mouseMoved", x1 + (x2 - x1) * i / 5, y1 + (y2 - y1) * i / 5)
        self.held = False
        self.mouse("mouseReleased", x2, y2)
        self.settle()

    def key(self, name: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code})
        self.settle()

    def box(self, selector: str) -> dict:
        """Where an element is, after scrolling to it."""
        script = ("(() => { const e = document.querySelector(%s); e.scrollIntoView({block: 'center'});"
                  "const b = e.getBoundingClientRect(); return {x: b.x, y: b.y, width: b.width, height: b.height}; })()")
        box = self.evaluate(script % json.dumps(selector))
        self.settle()
        return box

    def screenshot(self, path: str, whole: bool = True) -> None:
        data = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        pathlib.Path(path).write_bytes(base64.b64decode(data["data"]))
