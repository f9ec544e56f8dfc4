"""Reads the MIL texts that rules show; `dsl/lint/mil.py` tells the form."""

import re

from topoc.dsl.lint import mil

TOKEN = re.compile(r'"[^"]*"|-?(?:\d+\.?\d*(?:e-?\d+)?|inf)\b|[A-Za-z_]\w*|[\[\](){},:=?]|\S')
FLOAT = re.compile(r"-?\d*\.\d*(e-?\d+)?|-?\d+e-?\d+|-?inf")
TRUTH = {"true": True, "false": False}
DTYPE = re.compile(r"(fp|int|uint)\d+|bool|string")


class Reader:
    """A recursive descent over the tokens of a text."""

    def __init__(self, text):
        self.tokens = TOKEN.findall(text)
        self.at = 0
        self.stored = 64

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, wanted=None):
        found = self.peek()
        assert wanted in (None, found), f"{wanted} wanted, {found} found at token {self.at}"
        self.at += 1
        return found

    def took(self, wanted):
        if self.peek() != wanted:
            return False
        self.at += 1
        return True

    def several(self, end, read):
        found = []
        while not self.took(end):
            found.append(read())
            self.took(",")
        return found

    def package(self, path):
        functions = []
        while self.peek():
            functions.append(self.function())
        return mil.Package(path, tuple(functions))

    def function(self):
        name = self.take()
        opset = "CoreML8"
        self.take("(")
        given = self.several(")", self.feature)
        ops, outputs = self.body()
        return mil.Function(
            name=name,
            opset=opset,
            inputs=tuple(one for one in given if isinstance(one, mil.Feature)),
            states=tuple(one for one in given if not isinstance(one, mil.Feature)),
            outputs=outputs,
            body=ops,
        )

    def feature(self):
        name = self.take()
        self.take(":")
        if self.took("state"):
            return mil.Value(name, self.type())
        kind = self.type()
        return mil.Feature(name, kind, "unknown" if mil.FLEXIBLE in kind.shape else "")

    def type(self):
        dtype = self.take()
        self.take("[")
        sizes = self.several("]", self.take)
        return mil.Tensor(dtype, tuple(mil.FLEXIBLE if one == "?" else int(one) for one in sizes))

    def body(self):
        self.take("{")
        ops, outputs = [], ()
        while not self.took("}"):
            if self.took("return"):
                outputs = [self.take()]
                while self.took(","):
                    outputs.append(self.take())
            else:
                ops.append(self.op())
        return tuple(ops), tuple(outputs)

    def op(self):
        outputs = []
        while self.peek(1) in {":", ","}:
            name = self.take()
            self.take(":")
            outputs.append(mil.Value(name, self.type()))
            self.took(",")
        if outputs:
            self.take("=")
        kind = self.take()
        self.take("(")
        value, inputs = None, {}
        if kind == "const":
            value = self.constant(outputs[0].type)
        else:
            inputs = dict(self.several(")", self.argument))
        name = outputs[0].name if outputs else f"{kind}_{self.at}"
        return mil.Op(kind, name, inputs, tuple(outputs), self.blocks(), value)

    def constant(self, kind):
        if self.took(")"):
            return self.weight(kind)
        (literal,) = self.operand()
        self.take(")")
        return mil.Literal(kind, literal.values)

    def weight(self, kind):
        self.stored += 64
        return mil.Literal(kind, stored=("weight.bin", self.stored))

    def blocks(self):
        found = []
        while self.peek() == "{":
            ops, outputs = self.body()
            found.append(mil.Block((), ops, outputs))
        return tuple(found)

    def argument(self):
        key = self.take()
        self.take("=")
        return key, self.operand()

    def operand(self):
        if self.took("("):
            return tuple(self.several(")", self.take))
        if self.took("["):
            values = tuple(map(number, self.several("]", self.take)))
            dtype = dtype_of(values[0]) if values else "int32"
            return (mil.Literal(mil.Tensor(dtype, (len(values),)), values),)
        if DTYPE.fullmatch(self.peek()) and self.peek(1) == "[":
            return (self.weight(self.type()),)
        token = self.take()
        if DTYPE.fullmatch(token) and self.took("("):
            value = number(self.take())
            self.take(")")
            return (mil.Literal(mil.Tensor(token, ()), (value,)),)
        value = number(token)
        return (
            (token,) if value is None else (mil.Literal(mil.Tensor(dtype_of(value), ()), (value,)),)
        )


def number(token):
    """A number, truth value or text; None for a name."""
    if token[0] == '"':
        return token.strip('"')
    if token in TRUTH:
        return TRUTH[token]
    if FLOAT.fullmatch(token):
        return float(token)
    return int(token) if re.fullmatch(r"-?\d+", token) else None


def dtype_of(value):
    return {bool: "bool", int: "int32", float: "fp16", str: "string"}[type(value)]


def package(text, path="example.mlpackage"):
    """The views that a text stands for."""
    return Reader(text).package(path)
