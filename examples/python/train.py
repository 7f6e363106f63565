"""Trains a small model on batches of this program: no download, no GPU, a few seconds.

    python3 examples/python/train.py FOLDER     # the trained model is saved there

After 'pip install .' Python finds octet. Without it: PYTHONPATH=python OCTET_PROGRAM=build/release/octet
"""

import random
import sys

import octet

TEXT = "one two three four five six seven eight nine ten " * 20
ROWS, LENGTH, STEPS, PEAK = 8, 64, 60, 5e-3

with octet.Session(
    model_preset="llama-tiny",
    tokenizer="bytes",
    device="cpu",
    per_device_train_batch_size=ROWS,
    max_seq_length=LENGTH,
) as session:
    print(f"{session.num_parameters} parameters, {session.precision} on {session.device}")
    ids = session.encode(TEXT)
    chance = random.Random(1)

    def batch() -> list:
        starts = [chance.randrange(len(ids) - LENGTH) for _ in range(ROWS)]
        return [ids[start : start + LENGTH] for start in starts]

    for i in range(STEPS):
        result = session.step(batch(), lr=PEAK * min(1, (i + 1) / 10, (STEPS - i) / 20))
        if result.step % 10 == 0:
            print(f"step {result.step}: loss {result.loss:.4f}, {result.tokens / result.seconds:.0f} tokens/s")
    print(f"evaluation: loss {session.evaluate(batch()).loss:.4f}")
    print("four five" + session.generate("four five", max_new_tokens=21, temperature=0)[0])
    print(f"saved in {session.save(sys.argv[1])}")
