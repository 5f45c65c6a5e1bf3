"""Batches of the two stages: span corruption of plain text, and labelled texts. Each is a function of (seed, step)."""
import numpy as np
import torch

EOS = 1


def composition(total, parts, rows, generator):
    """Random lengths: (rows, parts) of positive integers whose sums are `total`."""
    device = generator.device
    cuts = torch.rand(rows, total - 1, generator=generator, device=device).argsort(1)[:, :parts - 1].sort(1).values + 1
    edges = torch.cat((torch.zeros(rows, 1, device=device), cuts, torch.full((rows, 1), total, device=device)), 1)
    return edges.diff(dim=1).long()


def corrupt(windows, vocab, generator, density=0.15, mean_span=3.0):
    """T5's span corruption (https://arxiv.org/abs/1910.10683, section 3.1.4): (B, L) -> inputs (B, S), targets (B, T).

    `density` of the tokens is noise, in spans of `mean_span` tokens on average. In the inputs a sentinel replaces
    each span; the targets are the sentinels, each before its span. Both end with </s>. S and T depend on L alone.
    """
    rows, length = windows.shape
    noise = round(length * density)
    spans = max(1, round(noise / mean_span))
    lengths = torch.stack((composition(length - noise, spans, rows, generator),
                           composition(noise, spans, rows, generator)), 2).flatten(1)
    place = torch.arange(length, device=windows.device).expand(rows, -1).contiguous()
    segment = torch.searchsorted(lengths.cumsum(1), place, right=True)
    hidden = segment % 2 == 1
    first = torch.cat((segment.new_full((rows, 1), -1), segment[:, :-1]), 1) != segment
    sentinel = vocab - 1 - segment // 2
    end = windows.new_full((rows, 1), EOS)
    inputs = torch.where(hidden, sentinel, windows)[~hidden | first].view(rows, -1)
    both = torch.stack((sentinel, windows), 2)[torch.stack((hidden & first, hidden), 2)].view(rows, -1)
    return torch.cat((inputs, end), 1), torch.cat((both, end), 1)


class Labelled:
    """The tasks of an archive of pack.py, on a device."""

    def __init__(self, path, device):
        arrays = np.load(path)
        self.arrays = {name: torch.from_numpy(arrays[name].astype(np.int32)).to(device) for name in arrays.files}

    def batch(self, task, rows, generator):
        """Random lines of the training part -> inputs (B, S), targets (B, T)"""
        inputs, labels = self.arrays[f"{task}.train.inputs"], self.arrays[f"{task}.train.labels"]
        chosen = torch.randint(len(inputs), (rows,), generator=generator, device=generator.device)
        inputs = inputs[chosen].long()
        if inputs.device.type == "cpu":  # where shorter inputs save more than the search for the longest costs
            inputs = inputs[:, :int((inputs != 0).sum(1).max())]
        return inputs, self.arrays[f"{task}.choices"][labels[chosen].long()].long()

    @torch.no_grad()
    def accuracy(self, model, task, part, limit, rows=256):
        """Share of the first `limit` lines whose right choice has the largest log-likelihood, </s> not counted."""
        inputs, labels = self.arrays[f"{task}.{part}.inputs"], self.arrays[f"{task}.{part}.labels"]
        right = 0
        count = min(len(inputs), limit)
        for at in range(0, count, rows):
            end = min(at + rows, count)
            scores = choice_scores(model, inputs[at:end].long(), self.arrays[f"{task}.choices"].long())
            right += (scores.argmax(1) == labels[at:end]).sum().item()
        return right / count


def choice_scores(model, inputs, choices):
    """inputs: (B, S), choices: (C, T) -> log-likelihoods (B, C) of the choices' tokens before </s>"""
    states, real, _ = model.encode(inputs)
    scores = []
    for choice in choices:
        targets = choice.expand(len(inputs), -1)
        logits, _ = model.decode(states, real, targets)
        each = torch.log_softmax(logits.float(), -1).gather(2, targets[..., None])[..., 0]
        scores.append((each * (targets > EOS)).sum(1))
    return torch.stack(scores, 1)


class Pretraining:
    """Windows of plain text with spans removed."""

    def __init__(self, folder, vocab, args, device):
        tokens = torch.from_numpy(np.load(folder / "tokens.npy").astype(np.int32)).to(device)
        held = min(400_000, len(tokens) // 20)
        self.tokens, self.held = tokens[:-held], tokens[-held:]
        self.vocab, self.window, self.rows, self.device = vocab, args.window, args.batch, device

    def batch(self, generator, *_):
        """-> name of the kind of batch, inputs (B, S), targets (B, T)"""
        starts = torch.randint(len(self.tokens) - self.window, (self.rows, 1), generator=generator, device=self.device)
        windows = self.tokens[starts + torch.arange(self.window, device=self.device)].long()
        return "spans", *corrupt(windows, self.vocab, generator)

    @torch.no_grad()
    def measure(self, model, loss_of):
        """Mean loss of the held-out text, with the same spans each time."""
        generator = torch.Generator(self.device).manual_seed(0)
        count = min(len(self.held) // self.window // self.rows, 8) * self.rows
        windows = self.held[:count * self.window].view(count, self.window).long()
        losses = [loss_of(model, *corrupt(part, self.vocab, generator)).item() for part in windows.split(self.rows)]
        return {"held_out": round(sum(losses) / len(losses), 4)}


class Finetuning:
    """Batches of one task each; the shares decide how often a task comes."""

    def __init__(self, path, args, device):
        self.tasks = Labelled(path, device)
        self.shares = dict(zip(args.tasks, args.shares, strict=True))
        self.stars, self.rows, self.dev_lines = args.stars, args.batch, args.dev_lines

    def batch(self, generator, draw, share):
        """`draw`, a random.Random, chooses the task -> its name, inputs (B, S), targets (B, T)

        While the stage's elapsed `share` is small, tasks with a twin NAME_stars take its labels.
        """
        name = draw.choices(list(self.shares), list(self.shares.values()))[0]
        if share < self.stars and f"{name}_stars.choices" in self.tasks.arrays:
            name += "_stars"
        return name, *self.tasks.batch(name, self.rows, generator)

    def measure(self, model, _):
        """Accuracy of each task on the part dev, and their mean."""
        found = {name: round(self.tasks.accuracy(model, name, "dev", self.dev_lines), 4) for name in self.shares}
        return {**found, "score": round(sum(found.values()) / len(found), 4)}
