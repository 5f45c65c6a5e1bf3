"""Write a small predictor with random weights and the logits that PyTorch computes with it.

    python tools/golden/make_sida_vectors.py tests/routing/sida

The tokens are more than the window, so that the oldest outputs leave it. tests/routing/sida_network_test.cc reads both
files.
"""
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train_predictor"))
from model import Config, Sida  # noqa: E402
from train import export  # noqa: E402

FINGERPRINT = "0123456789abcdef0123456789abcdef"
NUM_TOKENS = 24


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    config = Config(vocab_size=32, model_dim=12, num_layers=3, num_experts=5, dim=10, window=7)
    model = Sida(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # gates and weights of attention then differ more
        model.query.weight.add_(torch.randn(config.dim, config.dim))
        embeddings = torch.randn(config.vocab_size, config.model_dim)
        tokens = torch.randint(config.vocab_size, (NUM_TOKENS,))
        logits = model.double()(embeddings.double()[tokens][None])[0].flatten(1)
        model.float()
    export(folder / "network.safetensors", model, embeddings, FINGERPRINT)
    lines = [json.dumps([int(token), [round(x, 7) for x in row]])
             for token, row in zip(tokens.tolist(), logits.tolist(), strict=True)]
    (folder / "logits.json").write_text("[" + ",\n ".join(lines) + "]\n")


if __name__ == "__main__":
    main()
