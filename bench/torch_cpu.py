#!/usr/bin/env python3
"""Times a training step of eager PyTorch on the CPU, as the yardstick for octet's CPU backend.

A plain GPT in the manner of nanoGPT (--family gpt2: LayerNorm, learned positions, GELU tanh, biases, fused QKV) or Llama
(--family llama: RMSNorm, rotary positions, SwiGLU, grouped KV heads, no biases); tied head in both. One step is forward,
backward, gradient clipping and AdamW on the same random batch. --dtype bf16 runs forward and backward under autocast
with fp32 weights. Prints one JSON line: the median of the timed steps, after --warmup steps that are not counted. On a
busy machine ms_per_step says little; with --threads 1, cpu_ms_per_step (processor time) is then the better guide.

    torch_cpu.py --layers 4 --width 128 --heads 4 --ffn 512 --vocab 259 --seq 128 --batch 8 --threads 2
"""
import argparse
import contextlib
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit("this script needs torch")

# Dimension letters: B batch, T sequence, C width, H heads, K KV heads, D head width.


class GptAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)

    def forward(self, x, rope):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3 * self.heads, -1).transpose(1, 2).chunk(3, dim=1)  # each (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class LlamaAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.kv_heads = cfg.heads, cfg.kv_heads
        head_width = cfg.width // cfg.heads
        self.qkv = nn.Linear(cfg.width, (cfg.heads + 2 * cfg.kv_heads) * head_width, bias=False)
        self.out = nn.Linear(cfg.width, cfg.width, bias=False)

    def forward(self, x, rope):
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, self.heads + 2 * self.kv_heads, -1).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)  # (B, H, T, D), (B, K, T, D) twice
        q, k = rotate(q, rope), rotate(k, rope)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


def rotate(x, rope):
    cos, sin = rope  # (T, D/2) each
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def rope_tables(seq, head_width, theta=10000.0):
    frequencies = theta ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(seq, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


class GptMlp(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.up = nn.Linear(cfg.width, cfg.ffn)
        self.down = nn.Linear(cfg.ffn, cfg.width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class LlamaMlp(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gate_up = nn.Linear(cfg.width, 2 * cfg.ffn, bias=False)
        self.down = nn.Linear(cfg.ffn, cfg.width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        llama = cfg.family == "llama"
        norm = (lambda: nn.RMSNorm(cfg.width, eps=1e-5)) if llama else (lambda: nn.LayerNorm(cfg.width))
        self.norm1, self.norm2 = norm(), norm()
        self.attention = LlamaAttention(cfg) if llama else GptAttention(cfg)
        self.mlp = LlamaMlp(cfg) if llama else GptMlp(cfg)

    def forward(self, x, rope):
        x = x + self.attention(self.norm1(x), rope)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        llama = cfg.family == "llama"
        self.tokens = nn.Embedding(cfg.vocab, cfg.width)
        self.positions = None if llama else nn.Embedding(cfg.seq, cfg.width)
        self.rope = rope_tables(cfg.seq, cfg.width // cfg.heads) if llama else None
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.RMSNorm(cfg.width, eps=1e-5) if llama else nn.LayerNorm(cfg.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, self.rope)
        logits = F.linear(self.norm(x), self.tokens.weight)  # tied
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make_optimizer(model):
    decayed = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("positions")]
    plain = [p for n, p in model.named_parameters() if p.dim() != 2 or n.startswith("positions")]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    settings = {"lr": 6e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **settings), "fused"
    except RuntimeError:  # builds whose fused AdamW knows no CPU
        return torch.optim.AdamW(groups, foreach=True, **settings), "foreach"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv_heads", type=int, help="llama; default: as many as heads")
    parser.add_argument("--ffn", type=int, help="default: 4 * width (gpt2), 8/3 * width rounded up to 32 (llama)")
    parser.add_argument("--vocab", type=int, default=259)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    cfg = parser.parse_args()
    if cfg.width % cfg.heads:
        parser.error(f"--width {cfg.width} must be a multiple of --heads {cfg.heads}")
    if cfg.family == "gpt2" and cfg.kv_heads not in (None, cfg.heads):
        parser.error("--kv_heads is for --family llama")
    cfg.kv_heads = cfg.kv_heads or cfg.heads
    if cfg.heads % cfg.kv_heads:
        parser.error(f"--heads {cfg.heads} must be a multiple of --kv_heads {cfg.kv_heads}")
    cfg.ffn = cfg.ffn or (4 * cfg.width if cfg.family == "gpt2" else -(-8 * cfg.width // 96) * 32)
    return cfg


def main():
    cfg = parse_arguments()
    torch.set_num_threads(cfg.threads)
    torch.manual_seed(0)
    model = Gpt(cfg)
    optimizer, optimizer_kind = make_optimizer(model)
    stream = torch.randint(0, cfg.vocab, (cfg.batch, cfg.seq + 1))
    ids, targets = stream[:, :-1].contiguous(), stream[:, 1:].contiguous()
    bf16 = cfg.dtype == "bf16"

    times, cpu_times, losses = [], [], []
    for step in range(cfg.warmup + cfg.steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = model(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step >= cfg.warmup:
            times.append(1e3 * (time.perf_counter() - start))
            cpu_times.append(1e3 * (time.process_time() - cpu_start))

    median = statistics.median(times)
    report = vars(cfg) | {
        "parameters": sum(p.numel() for p in model.parameters()),
        "ms_per_step": round(median, 3),
        "cpu_ms_per_step": round(statistics.median(cpu_times), 3),
        "ms_min": round(min(times), 3),
        "ms_max": round(max(times), 3),
        "tokens_per_second": round(cfg.batch * cfg.seq / median * 1e3, 1),
        "loss_first": round(losses[0], 4),
        "loss_last": round(losses[-1], 4),
        "optimizer": optimizer_kind,
        "torch": torch.__version__,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
