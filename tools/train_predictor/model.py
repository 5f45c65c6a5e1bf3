"""The network of SiDA for decoder-only models, in plain PyTorch. src/penstock/routing/sida_network.cc computes the same.

A token's embedding is compressed (x). Two LSTM layers run over the x of the sequence. Each output of the second layer
attends to the last `window` outputs, its own included, with SparseMax weights. The weighted sum plus x gives one logit
for each expert of each layer. Key and value are the outputs themselves, as in the paper; the query is multiplied by a
matrix, which begins as the identity over sqrt(dim).
"""
from dataclasses import dataclass

import torch
from torch import nn

FORMAT = "penstock sida 1"


@dataclass
class Config:
    vocab_size: int
    model_dim: int
    num_layers: int
    num_experts: int
    dim: int = 64
    window: int = 64


def sparsemax(scores):
    """The nearest point of the simplex, along the last dimension. Scores of -inf get weight 0."""
    ordered = scores.sort(dim=-1, descending=True).values
    count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    sums = ordered.nan_to_num(neginf=-1e9).cumsum(-1)
    size = (1 + count * ordered > sums).sum(-1, keepdim=True)
    threshold = (sums.gather(-1, size - 1) - 1) / size
    return (scores - threshold).clamp(min=0)


class Sida(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.compress = nn.Linear(config.model_dim, config.dim)
        self.lstm = nn.LSTM(config.dim, config.dim, num_layers=2, batch_first=True)
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.output = nn.Linear(config.dim, config.num_layers * config.num_experts)
        with torch.no_grad():
            self.query.weight.copy_(torch.eye(config.dim) / config.dim ** 0.5)

    def forward(self, embeddings):
        """[sequences, tokens, model_dim] -> logits [sequences, tokens, num_layers, num_experts]."""
        x = self.compress(embeddings)
        hidden = self.lstm(x)[0]
        scores = self.query(hidden) @ hidden.mT
        tokens = torch.arange(hidden.shape[1], device=hidden.device)
        back = tokens[:, None] - tokens[None, :]
        seen = (back >= 0) & (back < self.config.window)
        attended = sparsemax(scores.masked_fill(~seen, float("-inf"))) @ hidden
        return self.output(attended + x).unflatten(-1, (self.config.num_layers, self.config.num_experts))

    @torch.no_grad()
    def tensors(self, embeddings):
        """The tensors of the file, for the model's embeddings [vocab_size, model_dim]."""
        tensors = {"table": self.compress(embeddings), "attention.query": self.query.weight}
        for layer in (0, 1):
            lstm = {name: getattr(self.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh")}
            tensors[f"lstm.{layer}.input"] = lstm["weight_ih"]
            tensors[f"lstm.{layer}.hidden"] = lstm["weight_hh"]
            tensors[f"lstm.{layer}.bias"] = (getattr(self.lstm, f"bias_ih_l{layer}") +
                                             getattr(self.lstm, f"bias_hh_l{layer}"))
        shape = (self.config.num_layers, self.config.num_experts)
        tensors["output.weight"] = self.output.weight.unflatten(0, shape)
        tensors["output.bias"] = self.output.bias.unflatten(0, shape)
        return {name: tensor.detach().float().contiguous().clone() for name, tensor in tensors.items()}
