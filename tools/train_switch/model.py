"""Switch Transformers (https://arxiv.org/abs/2101.03961) in plain PyTorch, arranged for fast training.

Parameters and results are those of SwitchTransformersForConditionalGeneration in transformers; check.py compares.
Only the form of the experts differs: one tensor for all experts of a layer, one batched product for all tokens.

Shapes: B sequences, T positions, S positions of the encoder, N = B*T tokens, D model width, H heads, d head width,
E experts, F expert width, C rows of an expert's bucket, V vocabulary.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 8192
    dim: int = 192
    heads: int = 6
    head_dim: int = 32
    ff: int = 192
    layers: int = 4  # in the encoder, and as many in the decoder
    experts: int = 8
    capacity: int = 64  # tokens of one sequence that an expert takes
    sparse_step: int = 2  # of so many layers, the second one is sparse
    buckets: int = 32
    max_distance: int = 128
    eps: float = 1e-6


class Move(torch.autograd.Function):
    """Rows in another order: (N, D) -> (M, D). Row i of the result is row there[i], or 0 if there[i] is N.

    back: (N,) is the inverse map, M for rows that no result has. So the gradient is a plain gather as well.
    """

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.save_for_backward(back)
        return torch.cat((x, x.new_zeros(1, x.shape[1]))).index_select(0, there)

    @staticmethod
    def backward(ctx, grad):
        back, = ctx.saved_tensors
        return torch.cat((grad, grad.new_zeros(1, grad.shape[1]))).index_select(0, back), None, None


class Norm(nn.Module):
    """RMS normalisation without bias."""

    def __init__(self, c):
        super().__init__()
        self.eps = c.eps
        self.weight = nn.Parameter(torch.ones(c.dim))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c, biased=False):
        super().__init__()
        self.c = c
        width = c.heads * c.head_dim
        self.q = nn.Linear(c.dim, width, bias=False)
        self.k = nn.Linear(c.dim, width, bias=False)
        self.v = nn.Linear(c.dim, width, bias=False)
        self.o = nn.Linear(width, c.dim, bias=False)
        if biased:
            self.relative_attention_bias = nn.Embedding(c.buckets, c.heads)

    def bias(self, length, causal):
        """(1, H, T, T): T5's bias for each distance between key and query."""
        device = self.relative_attention_bias.weight.device
        place = torch.arange(length, device=device)
        distance = place[None, :] - place[:, None]
        count = self.c.buckets if causal else self.c.buckets // 2
        first = 0 if causal else (distance > 0).long() * count
        distance = (-distance).clamp(min=0) if causal else distance.abs()
        exact = count // 2
        far = exact + (torch.log(distance.float() / exact) / math.log(self.c.max_distance / exact)
                       * (count - exact)).clamp(min=-1e6).long()
        bucket = first + torch.where(distance < exact, distance, far.clamp(max=count - 1))
        return self.relative_attention_bias(bucket).permute(2, 0, 1)[None]

    def forward(self, x, source, mask):
        """x: (B, T, D), source: (B, S, D), mask: (B, 1 or H, 1 or T, S), added to the scores -> (B, T, D)"""
        def heads(y):
            return y.view(y.shape[0], y.shape[1], self.c.heads, self.c.head_dim).transpose(1, 2)
        q, k, v = heads(self.q(x)), heads(self.k(source)), heads(self.v(source))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype), scale=1.0)
        return self.o(y.transpose(1, 2).flatten(2))


class Dense(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wi = nn.Linear(c.dim, c.ff, bias=False)
        self.wo = nn.Linear(c.ff, c.dim, bias=False)
        self.drop = 0.0

    def forward(self, x, real):
        """x: (B, T, D) -> (B, T, D), no routing"""
        return self.wo(F.dropout(F.relu(self.wi(x)), self.drop, self.training)), None


class Sparse(nn.Module):
    """Top-1 experts with a capacity for each sequence. wi: (E, F, D), wo: (E, D, F)."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = nn.Linear(c.dim, c.experts, bias=False)
        self.wi = nn.Parameter(torch.empty(c.experts, c.ff, c.dim))
        self.wo = nn.Parameter(torch.empty(c.experts, c.dim, c.ff))
        self.drop = 0.0
        self.jitter = 0.0
        self.bucket_factor = None  # rows of a bucket, as a multiple of N / E; None: as many as needed

    def route(self, x, real):
        """x: (B, T, D), real: (B, T) -> logits (B, T, E), probability (B, T), expert (B, T), kept (B, T)

        A token is kept if it is one of the first `capacity` tokens of its sequence that chose its expert.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            if self.training and self.jitter:
                x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
            logits = F.linear(x, self.router.weight)
            probability, expert = torch.softmax(logits, -1).max(-1)
        chosen = F.one_hot(expert, self.c.experts).int() * real[..., None].int()
        rank = torch.cumsum(chosen, 1, dtype=torch.int32).gather(2, expert[..., None])[..., 0]
        return logits, probability, expert, real & (rank <= self.c.capacity)

    def places(self, expert, kept, rows):
        """expert, kept: (N,) -> place of each token in the buckets (N,), or E*C; token of each place (E*C,), or N"""
        count, total = expert.numel(), self.c.experts * rows
        group = torch.where(kept, expert, self.c.experts)
        order = torch.argsort(group, stable=True)
        ordered = group[order]
        start = torch.searchsorted(ordered, torch.arange(self.c.experts + 1, device=group.device))
        rank = torch.arange(count, device=group.device) - start[ordered]
        taken = (ordered < self.c.experts) & (rank < rows)
        place = torch.where(taken, ordered * rows + rank, total)
        of_token = torch.empty_like(place).index_copy_(0, order, place)
        of_place = torch.full((total + 1,), count, device=group.device).index_copy_(0, place, order)
        return of_token, of_place[:total]

    def forward(self, x, real):
        """x: (B, T, D), real: (B, T) -> (B, T, D) and (logits, expert, kept)"""
        logits, probability, expert, kept = self.route(x, real)
        flat, keep = expert.flatten(), kept.flatten()
        if self.bucket_factor is None:
            rows = max(1, int(torch.bincount(flat[keep], minlength=1).max())) if keep.any() else 1
        else:
            rows = -(-math.ceil(self.bucket_factor * flat.numel() / self.c.experts) // 8) * 8
        of_token, of_place = self.places(flat, keep, rows)
        kind = x.device.type
        x = x.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype)
        y = Move.apply(x.reshape(-1, self.c.dim), of_place, of_token)
        h = F.relu(torch.bmm(y.view(self.c.experts, rows, -1), self.wi.transpose(1, 2)))
        y = torch.bmm(F.dropout(h, self.drop, self.training), self.wo.transpose(1, 2))
        y = Move.apply(y.flatten(0, 1), of_token, of_place)
        return y.view_as(x) * probability[..., None], (logits, expert, kept)


class Block(nn.Module):
    """layer: self-attention, cross-attention (decoder only), feed-forward; the names are those of transformers."""

    def __init__(self, c, decoder, first, sparse):
        super().__init__()
        self.decoder, self.drop = decoder, 0.0
        parts = [("SelfAttention", Attention(c, first))]
        if decoder:
            parts.append(("EncDecAttention", Attention(c)))
        parts.append(("mlp", (Sparse if sparse else Dense)(c)))
        self.layer = nn.ModuleList(nn.ModuleDict({name: part, "layer_norm": Norm(c)}) for name, part in parts)

    def add(self, x, y):
        return x + F.dropout(y, self.drop, self.training)

    def forward(self, x, real, mask, source=None, source_mask=None):
        """x: (B, T, D) -> (B, T, D) and the routing of a sparse layer"""
        y = self.layer[0]["layer_norm"](x)
        x = self.add(x, self.layer[0]["SelfAttention"](y, y, mask))
        if self.decoder:
            x = self.add(x, self.layer[1]["EncDecAttention"](self.layer[1]["layer_norm"](x), source, source_mask))
        y, routing = self.layer[-1]["mlp"](self.layer[-1]["layer_norm"](x), real)
        return self.add(x, y), routing


class Stack(nn.Module):
    def __init__(self, c, decoder):
        super().__init__()
        self.decoder, self.drop = decoder, 0.0
        self.block = nn.ModuleList(
            Block(c, decoder, i == 0, i % c.sparse_step == 1 or c.sparse_step == 1) for i in range(c.layers))
        self.final_layer_norm = Norm(c)

    def forward(self, x, real, source=None, source_real=None):
        """x: (B, T, D), real: (B, T) -> (B, T, D) and the routings of the sparse layers"""
        mask = self.block[0].layer[0]["SelfAttention"].bias(x.shape[1], self.decoder)
        if self.decoder:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            mask = mask.masked_fill(hidden, -1e9)
        else:
            mask = mask.masked_fill(~real[:, None, None, :], -1e9)
        source_mask = None
        if source is not None:
            source_mask = torch.zeros(source_real.shape, device=x.device).masked_fill(~source_real, -1e9)[:, None, None]
        x = F.dropout(x, self.drop, self.training)
        routings = []
        for block in self.block:
            x, routing = block(x, real, mask, source, source_mask)
            if routing:
                routings.append(routing)
        return F.dropout(self.final_layer_norm(x), self.drop, self.training), routings


class Switch(nn.Module):
    """Encoder and decoder with one embedding, which is also the output projection."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.shared = nn.Embedding(c.vocab, c.dim)
        self.encoder = Stack(c, decoder=False)
        self.decoder = Stack(c, decoder=True)
        self.reset()

    def reset(self):
        """T5's initial weights; routers begin with logits of deviation 1."""
        for name, p in self.named_parameters():
            if name.startswith("shared"):
                nn.init.normal_(p, std=1.0)
            elif name.endswith(".q.weight"):
                nn.init.normal_(p, std=(self.c.dim * self.c.head_dim) ** -0.5)
            elif p.dim() > 1:
                width = self.c.dim if "relative" in name else p.shape[-1]
                nn.init.normal_(p, std=width ** -0.5)

    def regularise(self, drop, expert_drop, jitter, bucket_factor):
        """Dropout of dense and sparse parts, noise on the routers' input, size of the buckets while training."""
        for module in self.modules():
            if hasattr(module, "drop"):
                module.drop = expert_drop if isinstance(module, Sparse) else drop
            if isinstance(module, Sparse):
                module.jitter, module.bucket_factor = jitter, bucket_factor

    def encode(self, inputs):
        """inputs: (B, S), 0 is padding -> states (B, S, D), real (B, S), routings"""
        real = inputs != 0
        states, routings = self.encoder(self.shared(inputs), real)
        return states, real, routings

    def decode(self, states, real, targets):
        """targets: (B, T) without the start token -> logits (B, T, V) that predict them, routings

        Padding (0) in the targets is computed, but its logits mean nothing.
        """
        shifted = F.pad(targets, (1, 0))[:, :-1]
        valid = F.pad(targets != 0, (1, 0), value=True)[:, :-1]
        x, routings = self.decoder(self.shared(shifted), valid, states, real)
        return F.linear(x * self.c.dim ** -0.5, self.shared.weight), routings

    def forward(self, inputs, targets):
        """inputs: (B, S), targets: (B, T) -> logits (B, T, V), (routing and real tokens of each sparse layer)"""
        states, real, routings = self.encode(inputs)
        logits, more = self.decode(states, real, targets)
        valid = F.pad(targets != 0, (1, 0), value=True)[:, :-1]
        return logits, [(r, real) for r in routings] + [(r, valid) for r in more]


def router_losses(routings, experts):
    """-> (balance, z, dropped), means over the sparse layers.

    balance = E * sum_e share_e * probability_e is 1 when even; z is the mean square of the log-sum-exp of the
    router's logits; dropped is the share of real tokens that found no room.
    """
    balance = z = dropped = 0.0
    for (logits, expert, kept), real in routings:
        count = real.sum().clamp(min=1)
        share = (F.one_hot(expert, experts) * real[..., None]).sum((0, 1)) / count
        probability = (torch.softmax(logits, -1) * real[..., None]).sum((0, 1)) / count
        balance = balance + experts * (share * probability).sum()
        z = z + (torch.logsumexp(logits, -1).square() * real).sum() / count
        dropped = dropped + (real & ~kept).sum() / count
    return balance / len(routings), z / len(routings), dropped / len(routings)
