"""Mixtral in plain PyTorch, arranged for fast CPU training.

Shapes: B sequences, T positions, N = B*T tokens, D model width, H query heads,
G key/value heads, d head width, E experts, F expert width, V vocabulary.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 4096
    dim: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    experts: int = 8
    top_k: int = 2
    expert_dim: int = 224
    rope_theta: float = 10000.0
    eps: float = 1e-5
    max_positions: int = 2048


class Dispatch(torch.autograd.Function):
    """Copy each token to its K slots, ordered by expert: (N, D) -> (N*K, D)."""

    @staticmethod
    def forward(ctx, x, order, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x.index_select(0, order // k)

    @staticmethod
    def backward(ctx, grad):
        inverse, = ctx.saved_tensors
        return grad.index_select(0, inverse).view(-1, ctx.k, grad.shape[1]).sum(1), None, None, None


class Collect(torch.autograd.Function):
    """Undo the ordering: (N*K, D) by expert -> (N, K, D) by token."""

    @staticmethod
    def forward(ctx, y, order, inverse, k):
        ctx.save_for_backward(order)
        return y.index_select(0, inverse).view(-1, k, y.shape[1])

    @staticmethod
    def backward(ctx, grad):
        order, = ctx.saved_tensors
        return grad.reshape(-1, grad.shape[-1]).index_select(0, order), None, None, None


class ChunkedLoss(torch.autograd.Function):
    """Sum of cross entropies of h @ w.T, computed with its gradients chunk by chunk.

    h: (N, D), w: (V, D), targets: (N,) -> scalar, in nats.
    """

    @staticmethod
    def forward(ctx, h, w, targets, chunk):
        total = 0.0
        grad_h, grad_w = torch.empty_like(h), torch.zeros_like(w)
        for at in range(0, h.shape[0], chunk):
            piece, goal = h[at:at + chunk], targets[at:at + chunk, None]
            logits = piece @ w.T
            total += (torch.logsumexp(logits, 1) - logits.gather(1, goal)[:, 0]).sum().item()
            p = torch.softmax(logits, 1)
            p.scatter_add_(1, goal, torch.full_like(goal, -1.0, dtype=p.dtype))
            torch.mm(p, w, out=grad_h[at:at + chunk])
            grad_w.addmm_(p.T, piece)
        ctx.save_for_backward(grad_h, grad_w)
        return h.new_tensor(total)

    @staticmethod
    def backward(ctx, grad):
        grad_h, grad_w = ctx.saved_tensors
        return grad_h * grad, grad_w * grad, None, None


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.dim, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.dim, bias=False)

    @staticmethod
    def rotate(x, cos, sin):
        """Rotary embedding on halves. x: (B, T, heads, d); cos, sin: (T, 1, d/2)."""
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, cos, sin):
        """x: (B, T, D) -> (B, T, D)"""
        B, T, _ = x.shape
        c = self.c
        q = self.rotate(self.q_proj(x).view(B, T, c.heads, c.head_dim), cos, sin).transpose(1, 2)
        k = self.rotate(self.k_proj(x).view(B, T, c.kv_heads, c.head_dim), cos, sin).transpose(1, 2)
        v = self.v_proj(x).view(B, T, c.kv_heads, c.head_dim).transpose(1, 2)
        repeat = c.heads // c.kv_heads
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(repeat, 1),
                                           v.repeat_interleave(repeat, 1), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class Experts(nn.Module):
    """Top-k routed SwiGLU experts. w1 gate, w3 up: (E, F, D); w2 down: (E, D, F)."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate = nn.Linear(c.dim, c.experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(c.experts, c.expert_dim, c.dim))
        self.w2 = nn.Parameter(torch.empty(c.experts, c.dim, c.expert_dim))
        self.w3 = nn.Parameter(torch.empty(c.experts, c.expert_dim, c.dim))

    def forward(self, x):
        """x: (N, D) -> y: (N, D), router logits: (N, E), chosen experts: (N, K)"""
        k = self.c.top_k
        logits = self.gate(x)
        weights, chosen = torch.softmax(logits, 1).topk(k, 1)
        weights = weights / weights.sum(1, keepdim=True)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel())
        counts = torch.bincount(flat, minlength=self.c.experts).tolist()
        parts = Dispatch.apply(x, order, inverse, k).split(counts)
        outputs = [(F.silu(p @ a.T) * (p @ b.T)) @ d.T
                   for p, a, b, d in zip(parts, self.w1.unbind(0), self.w3.unbind(0), self.w2.unbind(0), strict=True)]
        y = Collect.apply(torch.cat(outputs), order, inverse, k)
        return torch.bmm(weights[:, None], y)[:, 0], logits, chosen


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c.dim, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c.dim, c.eps)
        self.block_sparse_moe = Experts(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y, logits, chosen = self.block_sparse_moe(self.post_attention_layernorm(x).view(-1, x.shape[-1]))
        return x + y.view_as(x), logits, chosen


class Mixtral(nn.Module):
    """Decoder with tied input and output embeddings."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim, c.eps)
        inverse = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float32) / c.head_dim)
        angles = torch.outer(torch.arange(c.max_positions, dtype=torch.float32), inverse)[:, None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.reset()

    def reset(self):
        """Small normal weights; projections back into the residual stream start at zero."""
        for name, p in self.named_parameters():
            if p.dim() == 1:
                continue
            if "embed" in name or "gate" in name:
                nn.init.normal_(p, std=0.02)
            elif "o_proj" in name or "w2" in name:
                nn.init.zeros_(p)
            else:
                nn.init.normal_(p, std=0.6 * p.shape[-1] ** -0.5)

    def hidden(self, tokens):
        """tokens: (B, T) -> final normed states (B, T, D), per-layer router logits and choices."""
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[:tokens.shape[1]], self.sin[:tokens.shape[1]]
        routing = []
        for layer in self.layers:
            x, logits, chosen = layer(x, cos, sin)
            routing.append((logits, chosen))
        return self.norm(x), routing

    def forward(self, tokens):
        """tokens: (B, T) -> logits (B, T, V)"""
        return self.hidden(tokens)[0] @ self.embed_tokens.weight.T

    def losses(self, tokens, targets, chunk=1024):
        """tokens, targets: (B, T) -> (sum of cross entropies, balance, z) with
        balance = mean over layers of E * sum_e share_e * probability_e (1 when even) and
        z = mean squared log-sum-exp of the router logits."""
        h, routing = self.hidden(tokens)
        total = ChunkedLoss.apply(h.reshape(-1, self.c.dim), self.embed_tokens.weight, targets.reshape(-1), chunk)
        balance = z = 0.0
        for logits, chosen in routing:
            share = torch.bincount(chosen.reshape(-1), minlength=self.c.experts) / chosen.numel()
            balance = balance + self.c.experts * (share * torch.softmax(logits, 1).mean(0)).sum()
            z = z + torch.logsumexp(logits, 1).square().mean()
        return total, balance / self.c.layers, z / self.c.layers

    @torch.no_grad()
    def mean_loss(self, tokens, seq_len=512, batch=8):
        """Mean cross entropy (nats a token) of a 1-D token array, cut in windows of seq_len."""
        windows = (len(tokens) - 1) // seq_len
        x = tokens[:windows * seq_len].view(windows, seq_len)
        y = tokens[1:windows * seq_len + 1].view(windows, seq_len)
        total = 0.0
        for at in range(0, windows, batch):
            logits = self(x[at:at + batch])
            total += F.cross_entropy(logits.flatten(0, 1), y[at:at + batch].flatten(), reduction="sum").item()
        return total / (windows * seq_len)
