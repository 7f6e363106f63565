"""Tests of the Python package, with the program that OCTET_PROGRAM names and with small programs that stand for it:
PYTHONPATH=python OCTET_PROGRAM=build/release/octet python3 tests/python/test_octet.py"""

import array
import logging
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import octet
from octet import _batch, _session

try:
    import numpy
except ImportError:
    numpy = None

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TINY = dict(
    model_preset="gpt2-tiny",
    dataset="demo",
    tokenizer="bytes",
    device="cpu",
    max_seq_length=32,
    per_device_train_batch_size=2,
    num_threads=1,
)
RUN = dict(TINY, max_steps=6, logging_steps=1, eval_strategy="no", sample_steps=0, use_tensorboard=False)


class InFolder(unittest.TestCase):
    """Each test has an empty working folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        self.folder = pathlib.Path(folder.name).resolve()

    def fake(self, text):
        """From here on, this Python text is the program."""
        path = self.folder / "fake"
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        patch = mock.patch.dict(os.environ, OCTET_PROGRAM=str(path))
        patch.start()
        self.addCleanup(patch.stop)


class Train(InFolder):
    def test_every_step_is_reported_once(self):
        records = []
        with self.assertLogs("octet.console", logging.INFO) as console:
            result = octet.train(on_step=records.append, run_name="a", **RUN)
        self.assertEqual([record["step"] for record in records], [1, 2, 3, 4, 5, 6])
        self.assertEqual(list(result.log_history), records)
        self.assertEqual(list(octet.read_metrics("runs/a")), records)
        self.assertEqual(result.metrics, records[-1])
        self.assertEqual(result.loss, records[-1]["loss"])
        self.assertLess(result.loss, records[0]["loss"])
        self.assertEqual((result.run_dir, result.exit_code), (self.folder / "runs/a", 0))
        self.assertTrue(any("gpt2-tiny: 957K parameters" in line for line in console.output))

    def test_configurations(self):
        path = self.folder / "run.yaml"
        path.write_text("max_steps: 2\nrun_name: of_file\nlora_target: [all]\n")
        keys = {key: value for key, value in RUN.items() if key != "max_steps"}
        self.assertEqual(octet.train(path, **keys).run_dir.name, "of_file")
        # Every kind of value, a name that octet chooses, keys over the dict, and None for a default.
        config = dict(RUN, fp8_skip_layers=["first:1", "*.mlp.down"], learning_rate=1e-3, seed=None, verify=False)
        result = octet.train(config, max_steps=3, output_dir=self.folder / "other", eval_dataset=None)
        self.assertEqual(result.metrics["step"], 3)
        self.assertEqual(result.run_dir.parent, self.folder / "other")
        text = (result.run_dir / "config.yaml").read_text()
        self.assertIn("\nfp8_skip_layers: ['first:1', '*.mlp.down']\n", text.replace('"', "'"))

    def test_errors_of_the_configuration(self):
        with self.assertLogs("octet", logging.ERROR), self.assertRaises(octet.ConfigError) as caught:
            octet.train(max_stepz=1, learning_rate="fast")
        self.assertEqual(len(caught.exception.errors), 2)
        self.assertIn("--max_stepz", caught.exception.errors[0])
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaisesRegex(ValueError, "comma"):
            octet.train(dataset=["a,b", "c"])
        with self.assertRaisesRegex(TypeError, "dict"):
            octet.train(dataset={"path": "a"})

    def test_false_stops_and_resume_continues(self):
        result = octet.train(on_step=lambda record: record["step"] < 2, run_name="a", **dict(RUN, max_steps=500))
        self.assertEqual(result.exit_code, 75)
        stopped_at = result.metrics["step"]
        self.assertLess(stopped_at, 500)
        steps = []
        end = stopped_at + 2
        more = octet.train(on_step=lambda record: steps.append(record["step"]), resume=result.run_dir, max_steps=end)
        self.assertEqual(steps, [stopped_at + 1, stopped_at + 2])
        self.assertEqual(more.run_dir, result.run_dir)
        self.assertEqual([record["step"] for record in more.log_history], list(range(1, end + 1)))

    def test_an_exception_stops_and_is_raised(self):
        with self.assertRaises(ZeroDivisionError):
            octet.train(on_step=lambda record: 1 / 0, run_name="a", **dict(RUN, max_steps=500))
        self.assertTrue(pathlib.Path("runs/a/last_checkpoint").exists())

    def test_ctrl_c_stops_and_is_raised(self):
        # The first record asks for it, as a person would.
        def press(record):
            if record["step"] == 1:
                threading.Timer(0, os.kill, (os.getpid(), signal.SIGINT)).start()

        with self.assertRaises(KeyboardInterrupt):
            octet.train(on_step=press, run_name="a", **dict(RUN, max_steps=500))
        self.assertTrue(pathlib.Path("runs/a/last_checkpoint").exists())
        self.assertLess(len(octet.read_metrics("runs/a")), 500)

    def test_a_second_ctrl_c_kills(self):
        # It presses Ctrl-C itself, and again when it is asked to stop.
        self.fake("import os, signal, time\npress = lambda *_: os.kill(os.getppid(), signal.SIGINT)\n"
                  "signal.signal(signal.SIGINT, press)\ntime.sleep(0.3)\npress()\ntime.sleep(60)")  # fmt: skip
        started = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            octet.train()
        self.assertLess(time.monotonic() - started, 30)

    def test_a_killed_run(self):
        def kill(record):
            os.kill(int(pathlib.Path("runs/a/run.lock").read_text().split()[0]), signal.SIGKILL)

        with self.assertRaisesRegex(octet.OctetError, "killed by SIGKILL"):
            octet.train(on_step=kill, run_name="a", **dict(RUN, max_steps=500))

    def test_generate_asks_a_model_of_conversations(self):
        lines = '{"prompt": "count", "response": "one two three"}\n' * 40
        pathlib.Path("chat.jsonl").write_text(lines)
        run = octet.train(**dict(RUN, dataset="chat.jsonl", max_steps=40, learning_rate=3e-3, run_name="a")).run_dir
        self.assertEqual(octet.generate(run, "count", chat=True, temperature=0, device="cpu"), ["one two three"])

    def test_exit_codes(self):
        for code, kind in ((1, octet.OctetError), (3, octet.NotFiniteError), (4, octet.SaveError), (75, octet.Stopped)):
            self.fake(f"import sys\nprint('warning: w', file=sys.stderr)\nsys.exit('error: e') if {code} == 1 else 0\n"
                      f"print('error: e', file=sys.stderr)\nsys.exit({code})")  # fmt: skip
            with self.assertLogs("octet") as logs, self.assertRaisesRegex(octet.OctetError, "\ne$") as caught:
                octet.train()
            self.assertIs(type(caught.exception), kind)
            self.assertEqual([record.levelname for record in logs.records], ["WARNING", "ERROR"])

    def test_ranks(self):
        steps = []
        result = octet.train(on_step=lambda record: steps.append(record["step"]), ranks=2, **dict(RUN, max_steps=2))
        self.assertEqual(steps, [1, 2])
        self.assertTrue((result.run_dir / "rank_1.log").exists())

    def test_the_program_is_found(self):
        with mock.patch.dict(os.environ, OCTET_PROGRAM="/none/octet"), self.assertRaisesRegex(octet.OctetError, "/none"):
            octet.train()
        environment = {key: value for key, value in os.environ.items() if key != "OCTET_PROGRAM"}
        with mock.patch.dict(os.environ, environment, clear=True):
            with mock.patch.object(sys, "executable", str(self.folder / "python3")):
                with mock.patch.dict(os.environ, PATH="/none"), self.assertRaisesRegex(octet.OctetError, "pip install"):
                    octet.plan()
                pathlib.Path("octet").write_text("#!/bin/sh\necho '{}'\nexit 4\n")
                pathlib.Path("octet").chmod(0o755)
                with self.assertRaises(octet.SaveError):
                    octet.plan()


class Tools(InFolder):
    def test_plan(self):
        plan = octet.plan(TINY, gpu="h200")
        self.assertTrue(plan.fits)
        self.assertEqual(plan.precision, "FP8")
        self.assertEqual(sum(plan.memory.values()), plan.total_bytes)
        self.assertEqual(plan.raw["parameters"], 957312)
        self.assertTrue(any("device cpu has no effect" in text for text in plan.warnings))
        shared = octet.plan(model_preset="llama-3.1-8b", gpu="h200", ranks=8)
        self.assertEqual(shared.raw["ranks"], 8)
        large = octet.plan(model_preset="llama-3.1-70b", gpu="h200")
        self.assertFalse(large.fits)
        self.assertGreater(large.total_bytes, large.raw["memory_limit"])
        self.assertIn("GiB", large.raw["shortage"])

    def test_export_and_generate(self):
        run = octet.train(**RUN).run_dir
        folder = octet.export(run, "model", dtype="fp32")
        self.assertTrue((folder / "model.safetensors").exists())
        prompts = ["Mia has", "--best\n\"two\" lines"]
        texts = octet.generate(folder, prompts, max_new_tokens=8, temperature=0, device="cpu")
        self.assertEqual(len(texts), 2)
        self.assertFalse(texts[0].startswith("Mia"))
        self.assertEqual(octet.generate(run, prompts[0], max_new_tokens=8, temperature=0, device="cpu"), texts[:1])
        with self.assertRaises(octet.ConfigError):
            octet.generate("none", "a")


class ReadMetrics(InFolder):
    def test_a_file_that_grows(self):
        path = self.folder / "metrics.jsonl"
        path.write_text('{"step": 1, "loss": null, "loss_text": "nan"}\n{"step": 2, "loss": 3, "eval_loss": 4}\n{"st')
        metrics = octet.read_metrics(path)
        self.assertEqual(len(metrics), 2)
        self.assertTrue(math.isnan(metrics[0]["loss"]))
        self.assertEqual(metrics.columns()["step"], [1, 2])
        self.assertEqual(metrics.columns()["eval_loss"], [None, 4])
        self.assertEqual(list(octet.read_metrics(self.folder))[1], {"step": 2, "loss": 3, "eval_loss": 4})
        with self.assertRaises(FileNotFoundError):
            octet.read_metrics("none")


class HasOnly:
    """A tensor of another library."""

    def __init__(self, values, way="tolist"):
        setattr(self, way, lambda: values)


class Batches(unittest.TestCase):
    def check(self, batch, rows, labels=None):
        self.assertEqual((batch.rows, batch.length, batch.has_labels), (len(rows), len(rows[0]), labels is not None))
        self.assertEqual(batch.data.tolist(), sum(rows + (labels or []), []))

    def test_what_is_taken(self):
        rows = [[1, 2, 3], [4, 5, 6]]
        self.check(_batch.make_batch(rows), rows)
        self.check(_batch.make_batch(tuple(map(tuple, rows))), rows)
        self.check(_batch.make_batch([1, 2, 3]), [[1, 2, 3]])
        self.check(_batch.make_batch(array.array("i", [1, 2])), [[1, 2]])
        self.check(_batch.make_batch(array.array("q", [1, 2])), [[1, 2]])
        self.check(_batch.make_batch(HasOnly(rows)), rows)
        self.check(_batch.make_batch(HasOnly(HasOnly(rows), "numpy")), rows)
        self.check(_batch.make_batch([HasOnly(rows[0]), array.array("i", rows[1])]), rows)
        self.check(_batch.make_batch(rows, [[1, -100, 3], [4, 5, 6]]), rows, [[1, -100, 3], [4, 5, 6]])

    def test_rows_of_different_lengths_are_padded(self):
        padded = [[1, 2, 3], [4, 0, 0]]
        self.check(_batch.make_batch([[1, 2, 3], [4]]), padded, [[1, 2, 3], [4, -100, -100]])
        self.check(_batch.make_batch([[1, 2, 3], [4]], [[7, 8, 9], [5]]), padded, [[7, 8, 9], [5, -100, -100]])

    def test_what_is_refused(self):
        for wrong in ([[1.0]], [[1], [2, 2.5]], [True], [[[1]]], "text", b"bytes", 7, HasOnly(7), ["a"]):
            with self.subTest(wrong), self.assertRaisesRegex(TypeError, "input_ids|rows of token ids"):
                _batch.make_batch(wrong)
        for wrong in ([], [[]], [2**40]):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "input_ids"):
                _batch.make_batch(wrong)
        with self.assertRaisesRegex(ValueError, "labels has 1 rows of length 1; expected 1 rows of length 2"):
            _batch.make_batch([[1, 2]], [[1]])

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_numpy(self):
        rows = [[1, 2, 3], [4, 5, 6]]
        for kind in ("int32", "int64", "uint8", ">i4"):
            self.check(_batch.make_batch(numpy.array(rows, dtype=kind)), rows)
        transposed = numpy.array(rows, dtype="int32").T
        self.check(_batch.make_batch(transposed), transposed.tolist())

        class Interface:
            __array_interface__ = transposed.__array_interface__

        self.check(_batch.make_batch(Interface()), transposed.tolist())
        for wrong in (numpy.ones((2, 2)), numpy.ones((2, 2), bool), numpy.ones((2, 2, 2), int)):
            with self.assertRaises(TypeError):
                _batch.make_batch(wrong)

    @unittest.skipUnless("torch" in os.environ.get("OCTET_TEST_WITH", ""), "OCTET_TEST_WITH=torch")
    def test_torch(self):
        import torch

        for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
            ids = torch.tensor([[1, 2], [3, 4]], device=device)
            self.check(_batch.make_batch(ids, ids), [[1, 2], [3, 4]], [[1, 2], [3, 4]])
            self.check(_batch.make_batch([ids[0], ids[1]]), [[1, 2], [3, 4]])
            with self.assertRaises(TypeError):
                _batch.make_batch(ids.float())


FAKE_SESSION = """
import json, mmap, os, signal, socket, struct, sys, time
assert sys.argv[1] == "session"
places = dict(word.lstrip("-").split("=") for word in sys.argv[2:])
channel, memory = socket.socket(fileno=int(places["socket"])), int(places["memory"])
print("warning: a fake", file=sys.stderr, flush=True)
signal.signal(signal.SIGINT, lambda *_: os._exit(99))
step = 0
for line in channel.makefile("r"):
    request = json.loads(line)
    call, reply = request["call"], {}
    if call == "open":
        reply = {"parameters": 4, "vocab_size": 9, "rows": 2, "length": 3, "accumulation": 1, "precision": "fp8",
                 "device": "fake", "step": 0, "tensors": [{"name": "a", "shape": [2, 2]}, {"name": "b", "shape": []}]}
    elif call == "step":
        step += 1
        loss = None
        if "rows" in request:
            count = request["rows"] * request["length"] * (1 + request["labels"])
            loss = sum((i + 1) * v for i, v in enumerate(struct.unpack(f"{count}i", os.pread(memory, 4 * count, 0))))
        reply = {"step": step, "loss": loss, "penalty": 0, "grad_norm": 1, "lr": request["lr"] or 0.5, "tokens": 6,
                 "seconds": 0.1, "skipped": False}
    elif call == "tensor":
        values = [1, 2, 3, 4] if request["name"] == "a" else [5]
        os.pwrite(memory, struct.pack(f"{len(values)}f", *values), 0)
        reply = {"shape": [2, 2] if request["name"] == "a" else []}
    elif call == "generate":
        if request["prompts"] == ["late"]:  # the user presses Ctrl-C, and this takes long
            os.kill(os.getppid(), signal.SIGINT)
            while not os.path.exists("go"):
                time.sleep(0.01)
        reply = {"texts": request["prompts"]}
    elif call == "encode":
        reply = {"ids": [len(request["text"])]}
    elif call == "decode":
        error = {"kind": ["error", "input", "config"][request["ids"][0]], "message": "a", "messages": ["a", "b"]}
        channel.sendall((json.dumps({"id": request["id"], "error": error}) + "\\n").encode())
        continue
    elif call == "evaluate":
        print("[place] the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    elif call == "save":
        print(json.dumps(request), file=sys.stderr, flush=True)
        sys.exit(3)
    channel.sendall((json.dumps({"id": request["id"], "result": reply}) + "\\n").encode())
if os.environ.get("FAKE_HANGS"):
    time.sleep(60)
"""


class Protocol(InFolder):
    """The session's side of the protocol, with a program that does what the test needs."""

    def setUp(self):
        super().setUp()
        self.fake(FAKE_SESSION)
        self.before = self.children(), threading.active_count(), len(os.listdir("/proc/self/fd"))

    def tearDown(self):
        self.assertEqual((self.children(), threading.active_count(), len(os.listdir("/proc/self/fd"))), self.before)

    def children(self):
        return pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()

    def test_calls(self):
        with self.assertLogs("octet", logging.WARNING) as logs, octet.Session() as session:
            self.assertEqual((session.num_parameters, session.vocab_size, session.batch_rows), (4, 9, 2))
            self.assertEqual((session.max_length, session.precision, session.device), (3, "fp8", "fake"))
            result = session.step([[1, 2], [3, 4]], [[1, 1], [1, 1]], lr=0.25)
            self.assertEqual((result.step, result.lr, result.loss), (1, 0.25, 1 + 4 + 9 + 16 + 5 + 6 + 7 + 8))
            self.assertEqual(session.step([1, 2]).loss, 5)
            self.assertTrue(math.isnan(session.step().loss))
            self.assertEqual(session.global_step, 3)
            self.assertEqual(session.log_history.columns()["step"], [1, 2, 3])
            with self.assertRaisesRegex(ValueError, "without input_ids"):
                session.step(labels=[[1]])
            with self.assertRaises(ValueError):
                session.step(lr=math.nan)
        self.assertEqual([record.getMessage() for record in logs.records], ["a fake"])
        with self.assertRaisesRegex(octet.OctetError, "closed"):
            session.step()
        session.close()

    def test_weights(self):
        with octet.Session() as session:
            with mock.patch.dict(sys.modules, numpy=None):
                weights = session.state_dict()
            self.assertEqual(weights, {"a": ((2, 2), array.array("f", [1, 2, 3, 4])), "b": ((), array.array("f", [5]))})
            if numpy is not None:
                self.assertEqual(session.state_dict()["a"].tolist(), [[1, 2], [3, 4]])

    def test_errors(self):
        with octet.Session() as session:
            for kind, error in enumerate((octet.OctetError, octet.ConfigError, octet.ConfigError)):
                with self.assertRaisesRegex(octet.OctetError, "^a\nb$") as caught:
                    session.decode([kind])
                self.assertIs(type(caught.exception), error)
            self.assertEqual(session.encode("four"), [4])

    def test_ctrl_c_leaves_the_session_usable(self):
        with octet.Session() as session:
            with self.assertRaises(KeyboardInterrupt):
                session.generate(["late"])
            pathlib.Path("go").touch()
            self.assertEqual(session.encode("abc"), [3])
            self.assertEqual(session.generate("x"), ["x"])
            with self.assertRaises(KeyboardInterrupt):
                session.generate(["late"])
            self.assertEqual(session.step([1, 2]).loss, 5)
            pathlib.Path("go").unlink()
            with self.assertRaises(KeyboardInterrupt):
                session.generate(["late"])
            threading.Timer(0.2, pathlib.Path("go").touch).start()
        # close() has waited for the child, which had a call to finish.
        self.assertGreaterEqual(session._process.returncode, 0)

    def test_a_child_that_dies(self):
        session = octet.Session()
        with self.assertRaisesRegex(octet.OctetError, "(?s)killed by SIGKILL.*the last words"):
            session.evaluate()
        with self.assertRaisesRegex(octet.OctetError, "closed"):
            session.step()
        session = octet.Session()
        os.kill(session._process.pid, signal.SIGKILL)
        time.sleep(0.1)
        with self.assertRaisesRegex(octet.OctetError, "killed by SIGKILL"):
            session.step([1])
        with octet.Session() as session, self.assertRaisesRegex(octet.NotFiniteError, str(self.folder / "out")):
            session.save("out")

    def test_a_child_that_hangs_is_killed(self):
        with mock.patch.dict(os.environ, FAKE_HANGS="1"), mock.patch.object(_session, "_SECONDS_TO_END", 0.3):
            octet.Session().close()

    def test_a_child_that_does_not_start(self):
        self.fake("import sys\nsys.exit(2)")
        with self.assertRaises(octet.ConfigError):
            octet.Session()

    def test_the_end_of_python_ends_the_child(self):
        script = "import octet; session = octet.Session(); print(session._process.pid)"
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
        self.assertFalse(pathlib.Path(f"/proc/{int(done.stdout)}").exists())


class Training(InFolder):
    """Sessions of the program itself."""

    def test_the_own_dataset_gives_the_losses_of_train(self):
        run = octet.train(**RUN)
        with octet.Session(**RUN) as session:
            results = [session.step() for _ in range(RUN["max_steps"])]
        columns = run.log_history.columns()
        self.assertEqual([result.loss for result in results], columns["loss"])
        self.assertEqual([result.lr for result in results], columns["lr"])
        self.assertEqual([result.grad_norm for result in results], columns["grad_norm"])

    def test_a_checkpoint_continues_bit_for_bit(self):
        def train(session):
            return [(r.loss, r.grad_norm) for r in (session.step(), session.step([[5, 6, 7], [8, 9, 10]], lr=1e-3))]

        with octet.Session(**RUN) as session:
            train(session)
            path = session.save_checkpoint("checkpoint")
            expected = train(session)
            weights = session.state_dict()
        with octet.Session(**RUN) as session:
            session.load_checkpoint(path)
            self.assertEqual(session.global_step, 2)
            self.assertEqual(train(session), expected)
            self.assertEqual(list(map(str, session.state_dict().items())), list(map(str, weights.items())))

    def test_own_batches(self):
        with octet.Session(**TINY) as session:
            self.assertEqual((session.batch_rows, session.max_length), (2, 32))
            ids = session.encode("one two three four five six seven")[:32]
            self.assertEqual(session.decode(ids), "one two three four five six seve")
            rows = [ids, ids[:20]]
            before = session.evaluate(rows)
            self.assertEqual(before.tokens, 31 + 19)
            self.assertEqual(session.evaluate(rows, rows), before)
            self.assertNotEqual(session.evaluate(rows, [ids, [-100] * 20]), before)
            session.step(rows, lr=0)
            self.assertEqual(session.evaluate(rows).loss, before.loss)
            for _ in range(10):
                result = session.step(rows, lr=1e-3)
            self.assertEqual(result.lr, 1e-3)
            self.assertLess(result.loss, before.loss)
            self.assertEqual(session.global_step, 11)
            elements = sum(math.prod(getattr(value, "shape", value[0])) for value in session.state_dict().values())
            self.assertEqual(elements, session.num_parameters)
            text = session.generate(["one two"], max_new_tokens=5, temperature=0)
            folder = session.save("model")
        self.assertEqual(octet.generate(folder, "one two", max_new_tokens=5, temperature=0, device="cpu"), text)

    def test_ids_outside_the_vocabulary(self):
        with octet.Session(**TINY) as session:
            with self.assertRaisesRegex(ValueError, "(?s)(?=.*row 1)(?=.*column 2)(?=.*99999)"):
                session.step([[1, 2, 3], [1, 2, 99999]])
            with self.assertRaises(ValueError):
                session.step([[-1, 2]])
            self.assertEqual(session.step([[1, 2, 3]]).step, 1)

    def test_wrong_keys(self):
        with self.assertRaisesRegex(octet.ConfigError, "max_stepz"):
            octet.Session(max_stepz=1)

    def test_the_example(self):
        script = SOURCE / "examples/python/train.py"
        done = subprocess.run([sys.executable, script, "out"], stdout=subprocess.PIPE, text=True, check=True)
        losses = [float(text) for text in re.findall(r"loss ([0-9.]+)", done.stdout)]
        self.assertEqual(len(losses), 7)
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertTrue((self.folder / "out/config.json").exists())


if __name__ == "__main__":
    logging.getLogger("octet").addHandler(logging.NullHandler())
    unittest.main()
