"""MSL to C++14: address spaces and attributes are removed, and each kernel gets a function that runs one thread."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<line>^\#[^\n]*) | (?P<space>\s+)
    | (?P<number>(?: 0[xX][0-9a-fA-F'.]+(?:[pP][+-]?\d+)? | 0[bB][01']+
        | (?:\d[\d']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)? )[a-zA-Z]*)
    | (?P<name>[A-Za-z_]\w*) | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<open>\[\[) | (?P<mark>::|->|[^\s\w])
    """,
    re.VERBOSE | re.MULTILINE,
)
_ADDRESS_SPACES = {"device", "constant", "threadgroup", "thread", "threadgroup_imageblock", "ray_data"}
# Parts of C++ that MSL lacks, with the name of what they are.
FORBIDDEN = {
    **dict.fromkeys(("try", "catch", "throw", "noexcept"), "exceptions"),
    **dict.fromkeys(("new", "delete"), "dynamic memory"),
    **dict.fromkeys(("dynamic_cast", "typeid"), "type information at run time"),
    **dict.fromkeys(("virtual", "thread_local", "goto", "register", "asm"), "a keyword"),
    "double": "the type double",
    "std": "the standard library of C++",
}
_NO_FUNCTIONS = {"if", "for", "while", "switch", "return", "sizeof", "decltype", "else", "alignof", "operator"}
BUILTINS = {
    "thread_position_in_grid": "position",
    "thread_position_in_threadgroup": "local",
    "threadgroup_position_in_grid": "group",
    "threadgroups_per_grid": "groups",
    "threads_per_grid": "grid",
    "threads_per_threadgroup": "size",
    "dispatch_threads_per_threadgroup": "full_size",
    "thread_index_in_threadgroup": "index",
    "thread_index_in_simdgroup": "lane",
    "simdgroup_index_in_threadgroup": "simdgroup",
    "simdgroups_per_threadgroup": "simdgroups",
    "dispatch_simdgroups_per_threadgroup": "full_simdgroups",
    "threads_per_simdgroup": "width",
    "thread_execution_width": "width",
}


class MSLError(Exception):
    """A place where a source is no MSL; `text` has the form of a compiler's message."""


@dataclass
class Token:
    kind: str
    text: str
    line: int


@dataclass
class Parameter:
    """A parameter of a kernel."""

    name: str
    space: str  # the address space, or "" for what the GPU provides
    index: int = -1
    builtin: str = ""


@dataclass
class Kernel:
    name: str  # by which programs find it
    function: str  # the expression in C++
    parameters: list[Parameter] = field(default_factory=list)


@dataclass
class Translation:
    text: str
    kernels: list[Kernel]
    needs_fibers: bool  # threads of a group wait for each other

    def to_json(self) -> str:
        """Return what is needed to use the compiled text."""
        return json.dumps([[asdict(kernel) for kernel in self.kernels], self.needs_fibers])

    @classmethod
    def from_json(cls, text: str) -> Translation:
        kernels, needs_fibers = json.loads(text)
        found = [
            Kernel(each["name"], each["function"], [Parameter(**one) for one in each["parameters"]]) for each in kernels
        ]
        return cls("", found, needs_fibers)


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of preprocessed source with the lines of the program."""
    found, line = [], 1
    for match in _TOKEN.finditer(source):
        kind, text = str(match.lastgroup), match[0]
        if kind == "line":
            marker = re.match(r"#\s*(?:line\s+)?(\d+)", text)
            if marker:
                line = int(marker[1]) - 1
        found.append(Token(kind, text, line))
        line += text.count("\n")
    return found


class Translator:
    """One translation of a source that the preprocessor has expanded."""

    def __init__(self, source: str) -> None:
        self._tokens = tokens_of(source)
        self._places = [i for i, token in enumerate(self._tokens) if token.kind not in {"space", "line"}]
        self._templates: dict[str, Kernel] = {}
        self._kernels: list[Kernel] = []
        self._texts = [token.text for token in self._tokens]

    def run(self) -> Translation:
        self._check_words()
        self._check_address_spaces()
        self._find_kernels()
        self._rewrite()
        words = {token.text for token in self._tokens if token.kind == "name"}
        fibers = any("barrier" in word or word.startswith(("simd_", "quad_")) for word in words)
        return Translation("".join(self._texts), self._kernels, fibers)

    def _token(self, place: int) -> Token:
        inside = 0 <= place < len(self._places)
        return self._tokens[self._places[place]] if inside else Token("end", "", 0)

    def _text(self, place: int) -> str:
        return self._token(place).text

    def _fail(self, place: int, text: str) -> None:
        raise MSLError(f"program_source:{self._token(place).line}:1: error: {text}")

    def _check_words(self) -> None:
        for place in range(len(self._places)):
            token = self._token(place)
            if token.kind == "name" and token.text in FORBIDDEN:
                deleted = token.text == "delete" and self._text(place - 1) == "="
                if not deleted and not (token.text == "std" and self._text(place + 1) != "::"):
                    self._fail(place, f"'{token.text}': MSL has no {FORBIDDEN[token.text].removeprefix('the ')}")

    def _check_address_spaces(self) -> None:
        """Check the parameters of functions, and the pointers and references that are declared in their bodies."""
        for place in range(1, len(self._places)):
            if self._text(place) == "(" and self._is_function(place):
                for part in self._split(place)[0]:
                    self._check_declaration(part)
            elif self._text(place) in {"*", "&"} and self._text(place + 2) == "=":
                self._check_statement(place)

    def _is_function(self, place: int) -> bool:
        """Say whether a parenthesis begins the parameters of a function that is defined here."""
        name, before = self._token(place - 1), self._token(place - 2)
        if name.kind != "name" or name.text in _NO_FUNCTIONS or before.text in _NO_FUNCTIONS:
            return False
        if before.kind != "name" and before.text not in {">", "*", "&", "]"}:
            return False
        after = self._closing(place, "(", ")") + 1
        return self._text(after + (self._text(after) == "const")) == "{"

    def _check_declaration(self, places: list[int]) -> None:
        texts = [self._text(place) for place in places]
        if "[[" in texts:
            texts = texts[: texts.index("[[")]
        depth, refers = 0, False
        for text in texts:
            depth += (text in {"<", "("}) - (text in {">", ")"})
            refers |= depth == 0 and text in {"*", "&"}
        if refers and not _ADDRESS_SPACES & {*texts}:
            self._fail(places[0], f"'{' '.join(texts)}' must have a qualifier for its address space")

    def _check_statement(self, place: int) -> None:
        """Check `type * name =` if it is at the beginning of a statement."""
        start = place
        while self._token(start - 1).kind == "name" or self._text(start - 1) in {"::", "*", "&", "<", ">", ","}:
            start -= 1
        if start < place and self._text(start - 1) in {";", "{", "}"} and self._text(start) not in _NO_FUNCTIONS:
            self._check_declaration(list(range(start, place + 2)))

    # kernels

    def _find_kernels(self) -> None:
        for place in range(len(self._places)):
            word = self._text(place)
            if word == "kernel" and self._token(place).kind == "name":
                attribute = self._text(place - 1) == "[["
                self._kernel(place + 3 if attribute else place + 1, place - 1 if attribute else place)

    def _kernel(self, after: int, start: int) -> None:
        """Read the declaration that follows the word `kernel`."""
        host_name, before = self._attributes_before(start)
        template = self._text(before) == "template" or self._text(before) == ">"
        instance = self._text(before) == "template"
        while self._text(after) == "[[":
            name, after = self._attribute(after)
            host_name = name or host_name
        if instance and self._text(after) != "void":
            self._instance_of_declared(after, host_name)
            return
        if self._text(after) != "void":
            self._fail(after, "kernel must have void return type")
        function = self._text(after + 1)
        place = after + 2
        expression = function
        if instance and self._text(place) == "<":
            end = self._closing(place, "<", ">")
            expression = function + "".join(self._spelled(p) for p in range(place, end + 1))
            place = end + 1
        if instance and function in self._templates:
            self._kernels.append(Kernel(host_name or function, expression, self._templates[function].parameters))
            return
        kernel = Kernel(host_name or function, expression, self._parameters(place))
        if template and not instance:
            self._templates[function] = kernel
            return
        self._kernels.append(kernel)

    def _instance_of_declared(self, place: int, host_name: str) -> None:
        """Read `template [[host_name("n")]] [[kernel]] decltype(f<T>) f<T>;`."""
        if self._text(place) == "decltype":
            place = self._closing(place + 1, "(", ")") + 1
        else:
            place += 1
        function = self._text(place)
        end = self._closing(place + 1, "<", ">")
        expression = function + "".join(self._spelled(p) for p in range(place + 1, end + 1))
        if function not in self._templates:
            self._fail(place, f"no kernel template '{function}'")
        self._kernels.append(Kernel(host_name, expression, self._templates[function].parameters))

    def _spelled(self, place: int) -> str:
        text = self._text(place)
        return "" if text in _ADDRESS_SPACES else f" {text}"

    def _attributes_before(self, place: int) -> tuple[str, int]:
        """Skip attributes before a place; return a host name among them and the place before them."""
        host_name, place = "", place - 1
        while self._text(place) == "]":
            start = place
            while self._text(start) != "[[":
                start -= 1
            host_name = self._attribute(start)[0] or host_name
            place = start - 1
        return host_name, place

    def _attribute(self, place: int) -> tuple[str, int]:
        """Return the host name in an attribute, and the place after it."""
        name = ""
        while not (self._text(place) == "]" and self._text(place + 1) == "]"):
            if self._text(place) == "host_name":
                name = self._text(place + 2).strip('"')
            place += 1
            if self._token(place).kind == "end":
                self._fail(place - 1, "an attribute does not end")
        return name, place + 2

    def _closing(self, place: int, left: str, right: str) -> int:
        depth = 0
        while True:
            text = self._text(place)
            depth += (text == left) - (text == right)
            if depth == 0:
                return place
            if self._token(place).kind == "end":
                self._fail(place - 1, f"expected '{right}'")
            place += 1

    def _parameters(self, place: int) -> list[Parameter]:
        if self._text(place) != "(":
            self._fail(place, "expected '(' after the name of a kernel")
        parts, _ = self._split(place)
        found = [self._parameter(part) for part in parts if [self._text(p) for p in part] != ["void"]]
        return _numbered(found)

    def _split(self, place: int) -> tuple[list[list[int]], int]:
        """Return the places of each parameter of a list, and that of the closing parenthesis."""
        end = self._closing(place, "(", ")")
        parts: list[list[int]] = [[]]
        depth = 0
        for each in range(place + 1, end):
            text = self._text(each)
            depth += (text in {"(", "<", "[", "[["}) - (text in {")", ">"}) - (text == "]")
            if text == "[[":
                depth += 1  # it ends with two brackets
            if text == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append(each)
        return [part for part in parts if part], end

    def _parameter(self, places: list[int]) -> Parameter:
        texts = [self._text(place) for place in places]
        attribute = texts.index("[[") if "[[" in texts else len(texts)
        space = next((text for text in texts[:attribute] if text in _ADDRESS_SPACES), "")
        words = texts[attribute:]
        names = [p for p, text in zip(places[:attribute], texts[:attribute], strict=True) if text.isidentifier()]
        if not names:
            self._fail(places[0], "a parameter of a kernel has no name")
        name = self._text(names[-1])
        is_reference = any(text in {"*", "&"} for text in texts[:attribute])
        if is_reference and not space:
            self._fail(places[0], f"parameter '{name}' must have a qualifier for its address space")
        if is_reference and space == "thread":
            self._fail(places[0], f"parameter '{name}' of a kernel cannot be in the address space 'thread'")
        index = next((int(words[i + 2]) for i, word in enumerate(words) if word in {"buffer", "threadgroup"}), -1)
        builtin = next((word for word in words if word in BUILTINS), "")
        if not space and not builtin:
            what = " ".join(words) or "no attribute"
            self._fail(places[0], f"parameter '{name}' has {what}, which is not imitated")
        return Parameter(name, space, index, builtin)

    # the text

    def _rewrite(self) -> None:
        place, depth = 0, 0
        while place < len(self._places):
            token = self._token(place)
            if token.text == "[[":
                place = self._erase_attribute(place)
                continue
            depth += (token.text == "(") - (token.text == ")")
            if token.kind == "name" and token.text in _ADDRESS_SPACES | {"kernel"}:
                self._put(place, self._space(place, depth))
            elif token.kind == "number":
                self._put(place, _number(token.text))
            place += 1

    def _put(self, place: int, text: str) -> None:
        self._texts[self._places[place]] = text

    def _erase_attribute(self, place: int) -> int:
        end = self._attribute(place)[1]
        for each in range(place, end):
            self._put(each, "")
        return end

    def _space(self, place: int, depth: int) -> str:
        word = self._text(place)
        if word == "constant":
            near = {self._text(place - 1), self._text(place + 1), self._text(place + 2)}
            return "" if "const" in near else "const"
        begins = self._text(place - 1) in {"{", "}", ";"}
        if word == "threadgroup" and depth == 0 and begins and not self._is_pointer(place):
            return "static thread_local"
        return ""

    def _is_pointer(self, place: int) -> bool:
        while self._text(place) not in {";", "=", "[", "", "{"}:
            if self._text(place) in {"*", "&"}:
                return True
            place += 1
        return False


def _numbered(parameters: list[Parameter]) -> list[Parameter]:
    """Give the arguments without an index the next free ones, as Metal's compiler does."""
    for spaces in ({"device", "constant"}, {"threadgroup"}):
        own = [each for each in parameters if each.space in spaces]
        taken = {each.index for each in own}
        free = (index for index in range(len(parameters) + 31) if index not in taken)
        for each in own:
            if each.index < 0:
                each.index = next(free)
    return parameters


def _number(text: str) -> str:
    """Return a literal as MSL reads it: no suffix means float, h half, bf bfloat."""
    if text[:2] in {"0x", "0X", "0b", "0B"}:
        return text
    digits = text.rstrip("fFhHbBlLuU")
    suffix = text[len(digits) :].lower()
    is_float = any(mark in digits for mark in ".eE")
    if suffix == "h":
        return f"half({digits}{'' if is_float else '.0'}f)"
    if suffix == "bf":
        return f"bfloat({digits}{'' if is_float else '.0'}f)"
    return f"{text}f" if is_float and not suffix else text


def translate(preprocessed: str) -> Translation:
    """Return C++ for a source after the preprocessor."""
    return Translator(preprocessed).run()


def entry_of(kernel: Kernel, number: int) -> str:
    """Return the C++ functions that run one thread of a kernel, and that tell the sizes of its arguments."""
    slots = []
    for each in kernel.parameters:
        if each.builtin:
            slots.append(f"SOFTMETAL_BUILTIN({BUILTINS[each.builtin]})")
        elif each.space == "threadgroup":
            slots.append(f"softmetal::Threadgroup<{each.index}>")
        else:
            slots.append(f"softmetal::Buffer<{each.index}>")
    list_of = "".join(f", {slot}" for slot in slots)
    pointer = f"static_cast<decltype(&{kernel.function})>(&{kernel.function})"
    return (
        f"namespace {{ using Kernel{number} = softmetal::Kernel<decltype(&{kernel.function}), {pointer}{list_of}>; }}\n"
        f'extern "C" void softmetal_entry_{number}(const softmetal_thread* t) {{ Kernel{number}::run(*t); }}\n'
        f'extern "C" void softmetal_describe_{number}(softmetal::Shape* out) {{ Kernel{number}::describe(out); }}\n'
    )
