"""A small reader of GBNF grammars, written for its shortness: says whether a text matches, by trying all ways."""
import functools
import re

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class _Parser:
    def __init__(self, text):
        self.text, self.pos = text, 0

    def skip(self, lines):
        """Skips white space and comments, with `lines` also line ends."""
        while match := re.compile(r"[ \t\r\n]+|#[^\n]*" if lines else r"[ \t]+|#[^\n]*").match(self.text, self.pos):
            self.pos = match.end()

    def take(self, text):
        found = self.text.startswith(text, self.pos)
        self.pos += len(text) if found else 0
        return found

    def name(self):
        match = _NAME.match(self.text, self.pos)
        if match is None:
            raise ValueError(f"expected a name at {self.text[self.pos:self.pos + 20]!r}")
        self.pos = match.end()
        return match.group()

    def char(self):
        char = self.text[self.pos]
        self.pos += 1
        if char != "\\":
            return char
        kind = self.text[self.pos]
        self.pos += 1
        size = {"x": 2, "u": 4, "U": 8}.get(kind)
        if size is None:
            return _ESCAPES[kind]
        self.pos += size
        return chr(int(self.text[self.pos - size:self.pos], 16))

    def rules(self):
        rules = {}
        self.skip(True)
        while self.pos < len(self.text):
            name = self.name()
            self.skip(False)
            if not self.take("::="):
                raise ValueError(f"expected ::= behind {name}")
            self.skip(True)
            rules[name] = self.choice(False)
            self.skip(True)
        return rules

    def choice(self, is_inner):
        parts = [self.sequence(is_inner)]
        while True:
            self.skip(is_inner)
            mark = self.pos
            self.skip(True)  # an alternative may stand on the next line
            if not self.take("|"):
                self.pos = mark
                return ("choice", parts)
            self.skip(True)
            parts.append(self.sequence(is_inner))

    def sequence(self, is_inner):
        parts = []
        while True:
            self.skip(is_inner)
            item = self.item()
            if item is None:
                return ("sequence", parts)
            parts.append(self.repeated(item))

    def item(self):
        if self.take('"'):
            text = ""
            while not self.take('"'):
                text += self.char()
            return ("text", text)
        if self.take("["):
            is_negated, ranges = self.take("^"), []
            while not self.take("]"):
                first = last = self.char()
                if self.text[self.pos] == "-" and self.text[self.pos + 1] != "]":
                    self.pos += 1
                    last = self.char()
                ranges.append((first, last))
            return ("set", is_negated, ranges)
        if self.take("("):
            self.skip(True)
            inner = self.choice(True)
            self.skip(True)
            if not self.take(")"):
                raise ValueError("expected )")
            return inner
        if self.take("."):
            return ("set", True, [])
        return ("rule", self.name()) if _NAME.match(self.text, self.pos) else None

    def repeated(self, item):
        while True:
            if self.take("*"):
                item = ("repeat", item, 0, None)
            elif self.take("+"):
                item = ("repeat", item, 1, None)
            elif self.take("?"):
                item = ("repeat", item, 0, 1)
            elif match := re.compile(r"\{(\d+)(,(\d*))?\}").match(self.text, self.pos):
                self.pos = match.end()
                least = int(match[1])
                item = ("repeat", item, least, least if match[2] is None else int(match[3]) if match[3] else None)
            else:
                return item


def matches(grammar, text):
    """Returns whether the whole text is one of the rule `root`."""
    rules = _Parser(grammar).rules()

    @functools.cache
    def ends_of_rule(name, pos):
        return frozenset(ends(rules[name], pos))

    def ends(part, pos):
        """Returns where texts of a part that begin at `pos` may end."""
        if part[0] == "text":
            return {pos + len(part[1])} if text.startswith(part[1], pos) else set()
        if part[0] == "set":
            fits = pos < len(text) and any(first <= text[pos] <= last for first, last in part[2]) != part[1]
            return {pos + 1} if fits else set()
        if part[0] == "rule":
            return ends_of_rule(part[1], pos)
        if part[0] == "choice":
            return set().union(*(ends(one, pos) for one in part[1]))
        if part[0] == "sequence":
            found = {pos}
            for one in part[1]:
                found = set().union(*(ends(one, place) for place in found))
            return found
        _, one, least, most = part
        found, last, count = {pos} if least == 0 else set(), {pos}, 0
        while last and (most is None or count < most):
            count += 1
            last = set().union(*(ends(one, place) for place in last))
            if count >= least:
                last = last - found if most is None else last
                found |= last
        return found

    return len(text) in ends_of_rule("root", 0)
