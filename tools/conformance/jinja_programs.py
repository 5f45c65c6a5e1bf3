"""Small random Jinja programs from the constructs of chat templates, and chat templates with random changes."""

import re

CONTEXT = {
    "s": "Hello  World", "t": " a,b,c \n", "u": "\u00c9t\u00e9 \u4e16\u754c \U0001F680", "e": "", "n": 7, "z": 0, "m": -3, "f": 2.5, "yes": True, "no": False,
    "nil": None, "l": [3, 1, 2], "w": ["b", "A", "c", "b"], "q": [], "d": {"b": 1, "a": [1, {"x": "y"}], "items": 3}, "o": {},
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <there>"},
                 {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "42"}]}],
}
STRINGS = ["''", "'a'", "'b,a'", "' '", "'\\n'", "'World'", "'<|x|>'", "'it\\'s'", "\"q\"", "'l'", "'%s'", "'\u00e9'", "'1'", "'-2.5'", "'  x '",
           "'aXbXc'", "'a.b'", "'ab cd'", "'role'", "'content'"]


class Programs:
    """Makes programs from a random generator. Most expressions have a type that fits their place."""

    def __init__(self, rng):
        self.rng = rng
        self.names = {}

    def pick(self, *options):
        choice = self.rng.choice(options)
        return choice() if callable(choice) else choice

    def known(self, kind, defaults):
        names = [name for name, kinds in self.names.items() if kinds in (kind, "any")]
        return self.rng.choice(defaults + names)

    def expression(self, kind, depth):
        if self.rng.random() < 0.03:
            kind = self.rng.choice(["string", "int", "float", "bool", "list", "dict", "any"])
        if kind == "any":
            kind = self.rng.choice(["string", "string", "int", "float", "bool", "list", "dict", "none", "message", "seq"])
        if depth > 0 and self.rng.random() < 0.05:
            return f"({self.expression(kind, depth - 1)} if {self.expression('bool', depth - 1)} else {self.expression(kind, depth - 1)})"
        if depth > 0 and self.rng.random() < 0.04:
            return f"({self.expression(kind, depth - 1)} {self.pick('and', 'or')} {self.expression(kind, depth - 1)})"
        if depth > 0 and self.rng.random() < 0.03:
            return f"({self.pick('missing', self.expression('any', 0), 'd.nope')} | default({self.expression(kind, depth - 1)}{self.pick('', ', true')}))"
        return getattr(self, "make_" + kind)(depth)

    def make_none(self, depth):
        return self.pick("none", "nil", "missing", "d.nope", "None", "messages[2].content")

    def make_message(self, depth):
        return self.pick("messages[0]", "messages[1]", "messages[-1]", "(messages | first)", "(messages | last)", "messages[2]",
                         "(messages | selectattr('role', 'equalto', 'user') | first)", "(messages | rejectattr('content') | list)[0]")

    def make_string(self, depth):
        if depth <= 0:
            return self.pick(self.pick(*STRINGS), self.known("string", ["s", "t", "u", "e"]))
        s = lambda: self.expression("string", depth - 1)  # noqa: E731
        i = lambda: self.expression("int", depth - 1)  # noqa: E731
        seq = lambda: self.expression("seq", depth - 1)  # noqa: E731
        return self.pick(
            lambda: f"({s()} + {s()})", lambda: f"({s()} ~ {self.expression('any', depth - 1)})", lambda: f"{s()} * {i()}",
            lambda: f"{s()}.{self.pick('strip', 'lstrip', 'rstrip', 'upper', 'lower', 'title', 'capitalize', 'swapcase', 'casefold')}()",
            lambda: f"{s()}.{self.pick('strip', 'lstrip', 'rstrip')}({s()})",
            lambda: f"{s()}.replace({s()}, {s()}{self.pick('', ', 1', ', -1')})",
            lambda: f"{s()}.{self.pick('removeprefix', 'removesuffix')}({s()})",
            lambda: f"{s()}.{self.pick('ljust', 'rjust', 'center', 'zfill')}({self.pick('0', '5', '12', '13')})",
            lambda: f"{s()}.{self.pick('split', 'rsplit')}({self.pick(s(), 'none', repr(','))}{self.pick('', ', 1', ', maxsplit=1')})[{self.pick('0', '-1')}]",
            lambda: f"{s()}.{self.pick('partition', 'rpartition')}({s()})[{self.pick('0', '1', '2')}]",
            lambda: f"{s()}.join({seq()} | map('string'))", lambda: f"{self.pick(*STRINGS)}.join({self.pick('w', 'messages[0]', repr('ab'))})",
            lambda: f"({s()} | {self.pick('trim', 'upper', 'lower', 'title', 'capitalize', 'string', 'safe', 'e', 'escape', 'forceescape', 'reverse')})",
            lambda: f"({s()} | trim({s()}))", lambda: f"({s()} | replace({s()}, {s()}{self.pick('', ', 1')}))",
            lambda: f"({s()} | indent({self.pick('', '2', '2, true', 'width=1, blank=true', repr('> '), '0, first=True')}))",
            lambda: f"({s()} | truncate({self.pick('5', '8, true', '3, False', '6, false, ' + repr('!'), '5, leeway=0')}))",
            lambda: f"({s()} | center({self.pick('9', '20', '')}))",
            lambda: f"({self.expression('any', depth - 1)} | string)", lambda: f"({self.json(depth - 1)} | tojson{self.tojson_arguments()})",
            lambda: f"({seq()} | join({self.pick('', s(), repr(', '))}))", lambda: f"({self.pick('messages', 'messages[:2]')} | join({s()}, attribute='role'))",
            lambda: f"{s()}[{self.slice(depth - 1)}]", lambda: f"{s()}[{i()}]", lambda: f"({s()} | {self.pick('first', 'last')})",
            lambda: f"({self.pick(repr('%s-%s'), repr('%r|%5s'), repr('%-4s%s'))} | format({self.expression('any', depth - 1)}, {self.expression('any', depth - 1)}))",
            lambda: f"({self.pick(repr('%d'), repr('%05d'), repr('%+d'), repr('%x'), repr('%.2f'), repr('%e'), repr('%g'), repr('%5.1f|'))} % {self.expression('number', depth - 1)})",
            lambda: f"{self.pick(repr('{}:{}'), repr('{1}{0}'), repr('{:>6}|{:<6}'), repr('{0!r}{1}'), repr('{:^9}{:s}'))}.format({s()}, {s()})",
            lambda: f"{self.pick(repr('{:d}'), repr('{:05}'), repr('{:,}'), repr('{:.3f}'), repr('{}'), repr('{:+}'), repr('{:>8}'), repr('{:x}'))}.format({self.expression('number', depth - 1)})",
            lambda: f"{self.expression('message', depth - 1)}{self.pick('.role', '[' + repr('role') + ']', '.content', '.get(' + repr('content') + ', ' + s() + ')', '[' + s() + ']')}",
            lambda: self.make_string(0))

    def tojson_arguments(self):
        return self.pick("", "", "(indent=2)", "(ensure_ascii=true)", "(separators=(',', ':'))", "(sort_keys=true)", "(indent=0)", "(indent=1, separators=('; ', '='))",
                         "(false, 4)")

    def json(self, depth):
        return self.pick("messages", "d", "l", "u", "o", "q", "f", "nil", "[1, 2.0, {'a': none}]", lambda: self.expression("dict", depth),
                         lambda: self.expression("list", depth), "messages[2].tool_calls", "{1: 2, none: 3, true: 4, 2.5: 5}", "(1, 'x')")

    def slice(self, depth):
        part = lambda: self.pick("", "", "1", "-1", "2", "-3", "0", "100", lambda: self.expression("int", depth))  # noqa: E731
        return self.pick(lambda: f"{part()}:{part()}", lambda: f"{part()}:{part()}:{self.pick('', '1', '2', '-1', '-2')}")

    def make_number(self, depth):
        return self.expression(self.pick("int", "int", "float"), depth)

    def make_int(self, depth):
        if depth <= 0:
            return self.pick("0", "1", "2", "5", "-1", "10", "1000", self.known("int", ["n", "z", "m"]))
        i = lambda: self.expression("int", depth - 1)  # noqa: E731
        s = lambda: self.expression("string", depth - 1)  # noqa: E731
        return self.pick(
            lambda: f"({i()} {self.pick('+', '-', '*', '//', '%')} {i()})", lambda: f"({i()} ** {self.pick('2', '3', '0')})", lambda: f"({self.pick('-', '+')}{i()})",
            lambda: f"({self.expression('any', depth - 1)} | length)", lambda: f"({self.pick(s(), i(), self.expression('float', depth - 1))} | int{self.pick('', '(5)', '(0, 16)', '(default=-1)')})",
            lambda: f"{s()}.{self.pick('find', 'rfind', 'count')}({s()}{self.pick('', ', 1', ', 1, 5', ', -4')})", lambda: f"({i()} | abs)",
            lambda: f"({self.expression('list', depth - 1)} | {self.pick('sum', 'min', 'max', 'first', 'last', 'count')})", lambda: f"({s()} | wordcount)",
            lambda: f"l[{i()}]", lambda: f"({self.pick('l', 'range(3)')} | sum(start={i()}))", lambda: f"{self.expression('list', depth - 1)}.{self.pick('index', 'count')}({i()})",
            lambda: self.make_int(0))

    def make_float(self, depth):
        if depth <= 0:
            return self.pick("0.5", "1.0", "2.5", "-1.25", "1e3", "1e15", "0.1", "f", "1e-5")
        x = lambda: self.expression("number", depth - 1)  # noqa: E731
        return self.pick(
            lambda: f"({x()} {self.pick('+', '-', '*', '/', '%', '//')} {x()})", lambda: f"({self.pick(x(), self.expression('string', depth - 1))} | float{self.pick('', '(1.5)')})",
            lambda: f"({x()} | round{self.pick('', '(1)', '(2)', '(0, ' + repr('floor') + ')', '(1, ' + repr('ceil') + ')', '(-1)', '(precision=1)')})", lambda: f"({x()} | abs)",
            lambda: self.make_float(0))

    def make_bool(self, depth):
        if depth <= 0:
            return self.pick("true", "false", "yes", "no", "True", "False")
        a = lambda: self.expression("any", depth - 1)  # noqa: E731
        x = lambda: self.expression("number", depth - 1)  # noqa: E731
        s = lambda: self.expression("string", depth - 1)  # noqa: E731
        return self.pick(
            lambda: f"({a()} {self.pick('==', '!=')} {a()})", lambda: f"({x()} {self.pick('<', '<=', '>', '>=', '==')} {x()})", lambda: f"({s()} {self.pick('<', 'in', 'not in', '>=')} {s()})",
            lambda: f"({a()} {self.pick('in', 'not in')} {self.expression('seq', depth - 1)})", lambda: f"(not {a()})", lambda: f"({s()} in {self.expression('dict', depth - 1)})",
            lambda: f"({a()} is {self.pick('', 'not ')}{self.pick('defined', 'undefined', 'none', 'string', 'number', 'integer', 'float', 'boolean', 'mapping', 'iterable', 'sequence', 'callable', 'true', 'false', 'escaped')})",
            lambda: f"({self.expression('int', depth - 1)} is {self.pick('odd', 'even', 'divisibleby 2', 'divisibleby(3)', 'eq 1', 'gt 2', 'ne(0)', 'lt(5)', 'in [1, 2]', 'sameas 1')})",
            lambda: f"({s()} is {self.pick('upper', 'lower')})", lambda: f"{s()}.{self.pick('startswith', 'endswith')}({self.pick(s(), '(' + s() + ', ' + s() + ')')})",
            lambda: f"{s()}.{self.pick('isdigit', 'isalpha', 'isalnum', 'isspace', 'isupper', 'islower', 'isnumeric', 'isdecimal', 'istitle', 'isascii', 'isprintable')}()",
            lambda: f"({a()} {self.pick('and', 'or')} {a()})", lambda: f"({x()} < {x()} {self.pick('<', '<=', '==')} {x()})",
            lambda: f"({self.pick('messages', 'w', 'q', 'l', 'd')} {self.pick('| select', '| map(' + repr('string') + ')', '| list', '| items')} | {self.pick('list', 'first')} is defined)",
            lambda: self.make_bool(0))

    def make_seq(self, depth):
        return self.pick(lambda: self.expression("list", depth), lambda: self.expression("list", depth), lambda: self.expression("dict", depth), "range(4)",
                         lambda: self.expression("string", depth), "(1, 2, 'x')", lambda: f"{self.expression('dict', depth)}.{self.pick('keys', 'values', 'items')}()",
                         lambda: self.lazy(depth))

    def lazy(self, depth):
        """Returns an expression that is a generator in Python."""
        base = lambda: self.expression("list", depth - 1) if depth > 0 else self.pick("l", "w", "messages", "q")  # noqa: E731
        return self.pick(
            lambda: f"({base()} | map({self.pick(repr('string'), repr('upper'), repr('length'), repr('default') + ', 1', 'attribute=' + repr('role'), 'attribute=' + repr('role') + ', default=0')}))",
            lambda: f"({base()} | {self.pick('select', 'reject')}({self.pick('', repr('string'), repr('defined'), repr('odd'), repr('in') + ', [1, ' + repr('b') + ']', repr('equalto') + ', 1')}))",
            lambda: f"(messages | {self.pick('selectattr', 'rejectattr')}({self.pick(repr('content'), repr('role') + ', ' + repr('equalto') + ', ' + repr('user'), repr('tool_calls') + ', ' + repr('defined'), repr('role') + ', ' + repr('in') + ', [' + repr('user') + ']')}))",
            lambda: f"({base()} | {self.pick('unique', 'batch(2)', 'batch(2, 0)', 'slice(2)', 'slice(3, none)', 'reverse', 'unique(true)')})",
            lambda: f"({self.expression('dict', max(depth - 1, 0))} | items)")

    def make_list(self, depth):
        if depth <= 0:
            return self.pick(self.known("list", ["l", "w", "q", "messages"]), "[1, 2, 3]", "['x', 'y']", "[]", "(1, 2)", "[[1, 2], [3]]")
        items = lambda: ", ".join(self.expression("any", depth - 1) for _ in range(self.rng.randint(0, 3)))  # noqa: E731
        l = lambda: self.expression("list", depth - 1)  # noqa: E731, E741
        s = lambda: self.expression("string", depth - 1)  # noqa: E731
        return self.pick(
            lambda: f"[{items()}]", lambda: f"({l()} + {l()})", lambda: f"{l()}[{self.slice(depth - 1)}]", lambda: f"({l()} * {self.pick('2', '0', '-1')})",
            lambda: f"{s()}.split({self.pick('', s(), repr(','), 'none, 1', repr('X') + ', 1')})", lambda: f"{s()}.splitlines({self.pick('', 'true')})",
            lambda: f"({self.expression('seq', depth - 1)} | list)", lambda: f"({self.expression('seq', depth - 1)} | {self.pick('sort', 'sort(true)', 'sort(case_sensitive=true)', 'sort(reverse=true)')})",
            lambda: f"({self.pick('messages', 'messages[1:]')} | sort(attribute='role{self.pick('', ',content')}'))", lambda: f"({self.lazy(depth - 1)} | list)",
            lambda: f"(messages | groupby({self.pick(repr('role'), 'attribute=' + repr('content'), repr('nope') + ', default=' + repr('x'))}) | list)", lambda: f"({self.expression('dict', depth - 1)} | dictsort{self.pick('', '(true)', '(by=' + repr('value') + ')', '(reverse=true)')})",
            lambda: f"range({self.pick('3', '1, 4', '5, 0, -2', '0')}) | list", lambda: f"({items()},)", lambda: self.make_list(0))

    def make_dict(self, depth):
        if depth <= 0:
            return self.pick(self.known("dict", ["d", "o"]), "{'a': 1}", "{}", "{'x': 'y', 'k': none}", "messages[0]")
        entries = ", ".join(f"{self.pick(lambda: self.make_string(0), lambda: self.make_int(0))}: {self.expression('any', depth - 1)}" for _ in range(self.rng.randint(0, 3)))
        return self.pick(f"{{{entries}}}", lambda: f"dict({self.pick('', 'a=1, b=' + self.expression('any', depth - 1), '[(1, 2)]', 'd, c=3')})", lambda: f"dict({self.make_dict(0)}, **{self.make_dict(0)})",
                         lambda: self.make_dict(0), lambda: f"{self.make_dict(0)}.copy()", "(messages | first)")

    def dash(self):
        return self.pick("", "", "", "-", "+")

    def tag(self, body):
        close = self.pick("", "", "-", "+")
        return f"{{%{self.dash()} {body} {close}%}}"

    def output(self, depth):
        return f"{{{{{self.pick('', '', '-')} {self.expression('any', depth)} {self.pick('', '', '-')}}}}}"

    def data(self):
        return self.pick("a", " b ", "\n", "  \n", "x\n  ", "<|t|>", "", "\n\n", "\t", "{# c #}", "{#- c -#}\n", "  {# c #}\n", "{% raw %}{{ r }}{% endraw %}", "{", "}", "%", "\u00e9\n")

    def block(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randint(1, 3)))

    def statement(self, depth):
        if depth <= 0:
            return self.pick(self.data, lambda: self.output(2), lambda: self.output(1))
        return self.pick(self.data, self.data, lambda: self.output(3), lambda: self.output(2), lambda: self.if_statement(depth), lambda: self.for_statement(depth), lambda: self.set_statement(depth),
                         lambda: self.macro(depth), lambda: self.namespace(depth), lambda: self.other(depth))

    def if_statement(self, depth):
        parts = [self.tag(f"if {self.expression('bool', 2)}"), self.block(depth - 1)]
        if self.rng.random() < 0.3:
            parts += [self.tag(f"elif {self.expression('any', 2)}"), self.block(depth - 1)]
        if self.rng.random() < 0.5:
            parts += [self.tag("else"), self.block(depth - 1)]
        return "".join([*parts, self.tag("endif")])

    def for_statement(self, depth):
        target, over, names = self.pick(("i", self.expression("seq", 2), {"i": "any"}), ("i", "l", {"i": "int"}), ("i", "w", {"i": "string"}), ("msg", "messages", {"msg": "dict"}),
                                        ("k, v", f"{self.make_dict(1)}{self.pick('.items()', '|items', '|dictsort')}", {"k": "string", "v": "any"}),
                                        ("i", self.lazy(1), {"i": "any"}), ("i", "range(" + self.pick("3", "4") + ")", {"i": "int"}))
        before = dict(self.names)
        self.names.update(names)
        condition = f" if {self.expression('bool', 1)}" if self.rng.random() < 0.2 else ""
        inner = self.block(depth - 1)
        if self.rng.random() < 0.5:
            inner += "{{ loop." + self.pick("index", "index0", "first", "last", "length", "revindex", "revindex0", "depth", "previtem", "nextitem is defined", "cycle('x', 'y')", "changed(1)") + " }}"
        if self.rng.random() < 0.2:
            inner += self.tag(f"if {self.expression('bool', 1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif") + self.data()
        self.names = before
        otherwise = self.tag("else") + self.block(depth - 1) if self.rng.random() < 0.2 else ""
        return self.tag(f"for {target} in {over}{condition}") + inner + otherwise + self.tag("endfor")

    def set_statement(self, depth):
        name = self.rng.choice(["x", "y", "items"])
        if self.rng.random() < 0.2:
            own = self.pick("s = s ~ 'x'", "n = n + 1", "messages = messages[1:]", "l = l + [n]", "d = dict(d, z=1)")
            return self.tag(f"set {own}")
        if self.rng.random() < 0.2:
            filters = self.pick("", "", " | upper", " | trim | replace('a', 'b')")
            result = self.tag(f"set {name}{filters}") + self.block(depth - 1) + self.tag("endset")
            self.names[name] = "string"
            return result
        kind = self.rng.choice(["string", "int", "list", "dict", "bool"])
        result = self.tag(f"set {name} = {self.expression(kind, 2)}") if self.rng.random() < 0.9 else self.tag(f"set {name}, x = {self.expression(kind, 1)}, {self.expression('any', 1)}")
        self.names[name] = kind
        return result

    def namespace(self, depth):
        name = "ns"
        inner = self.tag(f"set {name}.k = {self.expression('any', 1)}")
        start = self.tag(f"set {name} = namespace({self.pick('', 'k=1', 'k=' + self.expression('any', 1), '{' + repr('k') + ': 2}')})")
        loop = self.tag("for i in range(3)") + self.tag(f"set {name}.k = {self.pick('i', name + '.k', name + '.k ~ i')}") + self.tag("endfor")
        return start + self.pick(inner, loop, inner + loop) + "{{ ns.k }}"

    def macro(self, depth):
        signature, call = self.pick(("a, b='x'", "(1)"), ("a, b=2", "(b='q', a=[1])"), ("", "()"), ("a", "(messages[0])"), ("a, b=a", "('z')"), ("a", "('p', 'q')"), ("a, b", "(*[1, 2])"))
        before = dict(self.names)
        self.names.update({"a": "any", "b": "any"})
        body = self.block(depth - 1)
        self.names = before
        if self.rng.random() < 0.2:
            return self.tag(f"macro mac({signature})") + body + "{{ caller() }}" + self.tag("endmacro") + self.tag(f"call mac{call}") + self.block(depth - 1) + self.tag("endcall")
        return self.tag(f"macro mac({signature})") + body + self.tag("endmacro") + f"[{{{{ mac{call}{self.pick('', ' | trim', ' | upper', ' ~ 1')} }}}}]"

    def other(self, depth):
        return self.pick(
            lambda: self.tag(f"with x = {self.expression('any', 1)}, y = {self.pick('x', '1')}") + "{{ x }}" + self.block(depth - 1) + self.tag("endwith"),
            lambda: self.tag(f"filter {self.pick('upper', 'trim', 'replace(' + repr('a') + ', ' + repr('b') + ')', 'indent', 'lower | title')}") + self.block(depth - 1) + self.tag("endfilter"),
            lambda: self.tag("generation") + self.block(depth - 1) + self.tag("endgeneration"), lambda: "{% print " + self.expression("any", 2) + " %}",
            lambda: self.tag(f"block b{self.rng.randint(0, 99)}") + self.data() + self.tag("endblock"),
            lambda: self.tag("for i in [[1, [2, []]], 3] recursive") + "<{{ loop.depth }}{% if i is iterable %}{{ loop(i) }}{% else %}{{ i }}{% endif %}>" + self.tag("endfor"))

    def program(self):
        self.names = {}
        return "".join(self.statement(self.rng.choice([1, 2, 2, 3])) for _ in range(self.rng.randint(1, 4)))


TOKEN = re.compile(r"\{[%{#][-+]?|[-+]?[%}#]\}|\w+|\s+|'[^'\n]*'|\"[^\"\n]*\"|.", re.S)
STRANGERS = ["-%}", "{%-", "{%", "%}", "}}", "{{", "{#", "#}", "|", ".", "[0]", "[-1:]", "(", ")", "is", "not", "none", "loop.index0", "messages", "~", "+",
             "==", "in", "if", "else", " and ", "or", "\"", "'", "\n", "  ", "|trim", "|length", "|list", "|tojson", "1", "\\", ":", ",", "\u00e9", "\u2581"]


def changed(rng, source):
    """Returns the template with one to three tokens removed, doubled, swapped, reversed or replaced by others."""
    tokens = TOKEN.findall(source)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        dice = rng.random()
        if dice < 0.35:
            tokens[at] = ""
        elif dice < 0.5:
            tokens.insert(at, tokens[other])
        elif dice < 0.65:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif dice < 0.8:
            tokens[at] = rng.choice(STRANGERS)
        else:
            tokens[at] = tokens[at][::-1]
    return "".join(tokens)
