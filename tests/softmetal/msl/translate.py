"""MSL to C++14: address spaces and attributes are removed, and each kernel gets a function that runs one thread."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from .restrictions import check
from .tokens import ADDRESS_SPACES, Tokens

_STATIC = "static thread_local"  # a variable that the threads of a group share, which run on one thread of the host
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
    static_memory: bool  # there are threadgroup variables

    def to_json(self) -> str:
        """Return what is needed to use the compiled text."""
        return json.dumps([[asdict(kernel) for kernel in self.kernels], self.needs_fibers, self.static_memory])

    @classmethod
    def from_json(cls, text: str) -> Translation:
        kernels, needs_fibers, static_memory = json.loads(text)
        found = [
            Kernel(each["name"], each["function"], [Parameter(**one) for one in each["parameters"]]) for each in kernels
        ]
        return cls("", found, needs_fibers, static_memory)


class Translator(Tokens):
    """One translation of a source that the preprocessor has expanded."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._templates: dict[str, Kernel] = {}
        self._kernels: list[Kernel] = []
        self._texts = [token.text for token in self.tokens]

    def run(self) -> Translation:
        check(self)
        self._find_kernels()
        self._rewrite()
        words = {token.text for token in self.tokens if token.kind == "name"}
        fibers = any("barrier" in word or word.startswith(("simd_", "quad_")) for word in words)
        return Translation("".join(self._texts), self._kernels, fibers, _STATIC in self._texts)

    # kernels

    def _find_kernels(self) -> None:
        for place in range(len(self.places)):
            word = self.text(place)
            if word == "kernel" and self.token(place).kind == "name":
                attribute = self.text(place - 1) == "[["
                self._kernel(place + 3 if attribute else place + 1, place - 1 if attribute else place)

    def _kernel(self, after: int, start: int) -> None:
        """Read the declaration that follows the word `kernel`."""
        host_name, before = self._attributes_before(start)
        template = self.text(before) == "template" or self.text(before) == ">"
        instance = self.text(before) == "template"
        while self.text(after) == "[[":
            name, after = self.attribute(after)
            host_name = name or host_name
        if instance and self.text(after) != "void":
            self._instance_of_declared(after, host_name)
            return
        if self.text(after) != "void":
            self.fail(after, "kernel must have void return type")
        function = self.text(after + 1)
        place = after + 2
        expression = function
        if instance and self.text(place) == "<":
            end = self.closing(place, "<", ">")
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
        if self.text(place) == "decltype":
            place = self.closing(place + 1, "(", ")") + 1
        else:
            place += 1
        function = self.text(place)
        end = self.closing(place + 1, "<", ">")
        expression = function + "".join(self._spelled(p) for p in range(place + 1, end + 1))
        if function not in self._templates:
            self.fail(place, f"no kernel template '{function}'")
        self._kernels.append(Kernel(host_name, expression, self._templates[function].parameters))

    def _spelled(self, place: int) -> str:
        text = self.text(place)
        return "" if text in ADDRESS_SPACES else f" {text}"

    def _attributes_before(self, place: int) -> tuple[str, int]:
        """Skip attributes before a place; return a host name among them and the place before them."""
        host_name, place = "", place - 1
        while self.text(place) == "]":
            start = place
            while self.text(start) != "[[":
                start -= 1
            host_name = self.attribute(start)[0] or host_name
            place = start - 1
        return host_name, place

    def _parameters(self, place: int) -> list[Parameter]:
        if self.text(place) != "(":
            self.fail(place, "expected '(' after the name of a kernel")
        parts, _ = self.split(place)
        found = [self._parameter(part) for part in parts if [self.text(p) for p in part] != ["void"]]
        return _numbered(found)

    def _parameter(self, places: list[int]) -> Parameter:
        texts = [self.text(place) for place in places]
        attribute = texts.index("[[") if "[[" in texts else len(texts)
        space = next((text for text in texts[:attribute] if text in ADDRESS_SPACES), "")
        words = texts[attribute:]
        names = [p for p, text in zip(places[:attribute], texts[:attribute], strict=True) if text.isidentifier()]
        if not names:
            self.fail(places[0], "a parameter of a kernel has no name")
        name = self.text(names[-1])
        is_reference = any(text in {"*", "&"} for text in texts[:attribute])
        if is_reference and not space:
            self.fail(places[0], f"parameter '{name}' must have a qualifier for its address space")
        if is_reference and space == "thread":
            self.fail(places[0], f"parameter '{name}' of a kernel cannot be in the address space 'thread'")
        index = next((int(words[i + 2]) for i, word in enumerate(words) if word in {"buffer", "threadgroup"}), -1)
        builtin = next((word for word in words if word in BUILTINS), "")
        if not space and not builtin:
            what = " ".join(words) or "no attribute"
            self.fail(places[0], f"parameter '{name}' has {what}, which is not imitated")
        return Parameter(name, space, index, builtin)

    # the text

    def _rewrite(self) -> None:
        place, depth = 0, 0
        while place < len(self.places):
            token = self.token(place)
            if token.text == "[[":
                place = self._erase_attribute(place)
                continue
            depth += (token.text == "(") - (token.text == ")")
            if token.kind == "name" and token.text in ADDRESS_SPACES | {"kernel"}:
                self._put(place, self._space(place, depth))
            elif token.kind == "number":
                self._put(place, _number(token.text))
            place += 1

    def _put(self, place: int, text: str) -> None:
        self._texts[self.places[place]] = text

    def _erase_attribute(self, place: int) -> int:
        end = self.attribute(place)[1]
        for each in range(place, end):
            self._put(each, "")
        return end

    def _space(self, place: int, depth: int) -> str:
        word = self.text(place)
        if word == "constant":
            near = {self.text(place - 1), self.text(place + 1), self.text(place + 2)}
            return "" if "const" in near else "const"
        begins = self.text(place - 1) in {"{", "}", ";"}
        if word == "threadgroup" and depth == 0 and begins and not self._is_pointer(place):
            return _STATIC
        return ""

    def _is_pointer(self, place: int) -> bool:
        while self.text(place) not in {";", "=", "[", "", "{"}:
            if self.text(place) in {"*", "&"}:
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
    address = f"&{kernel.function}"
    list_of = "".join(f", {slot}" for slot in slots)
    return (
        f"namespace {{ using Kernel{number} = softmetal::Kernel<decltype({address}), {address}{list_of}>; }}\n"
        f'extern "C" void softmetal_entry_{number}(const softmetal_thread* t) {{ Kernel{number}::run(*t); }}\n'
        f'extern "C" void softmetal_describe_{number}(softmetal::Shape* out) {{ Kernel{number}::describe(out); }}\n'
    )
