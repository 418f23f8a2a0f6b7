"""C++ that MSL forbids: words, and pointers and references without an address space."""

from __future__ import annotations

from .tokens import ADDRESS_SPACES, Tokens

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


def check(tokens: Tokens) -> None:
    """Raise MSLError at the first place that is no MSL."""
    _check_words(tokens)
    _check_address_spaces(tokens)


def _check_words(tokens: Tokens) -> None:
    for place in range(len(tokens.places)):
        token = tokens.token(place)
        if token.kind == "name" and token.text in FORBIDDEN:
            deleted = token.text == "delete" and tokens.text(place - 1) == "="
            if not deleted and not (token.text == "std" and tokens.text(place + 1) != "::"):
                tokens.fail(place, f"'{token.text}': MSL has no {FORBIDDEN[token.text].removeprefix('the ')}")


def _check_address_spaces(tokens: Tokens) -> None:
    """Check the parameters of functions, and the pointers and references that are declared in their bodies."""
    for place in range(1, len(tokens.places)):
        if tokens.text(place) == "(" and _is_function(tokens, place):
            for part in tokens.split(place)[0]:
                _check_declaration(tokens, part)
        elif tokens.text(place) in {"*", "&"} and tokens.text(place + 2) == "=":
            _check_statement(tokens, place)


def _is_function(tokens: Tokens, place: int) -> bool:
    """Say whether a parenthesis begins the parameters of a function that is defined here."""
    name, before = tokens.token(place - 1), tokens.token(place - 2)
    if name.kind != "name" or name.text in _NO_FUNCTIONS or before.text in _NO_FUNCTIONS:
        return False
    if before.kind != "name" and before.text not in {">", "*", "&", "]"}:
        return False
    after = tokens.closing(place, "(", ")") + 1
    return tokens.text(after + (tokens.text(after) == "const")) == "{"


def _check_declaration(tokens: Tokens, places: list[int]) -> None:
    texts = [tokens.text(place) for place in places]
    if "[[" in texts:
        texts = texts[: texts.index("[[")]
    depth, refers = 0, False
    for text in texts:
        depth += (text in {"<", "("}) - (text in {">", ")"})
        refers |= depth == 0 and text in {"*", "&"}
    if refers and not ADDRESS_SPACES & {*texts}:
        tokens.fail(places[0], f"'{' '.join(texts)}' must have a qualifier for its address space")


def _check_statement(tokens: Tokens, place: int) -> None:
    """Check `type * name =` if it is at the beginning of a statement."""
    start = place
    while tokens.token(start - 1).kind == "name" or tokens.text(start - 1) in {"::", "*", "&", "<", ">", ","}:
        start -= 1
    if start < place and tokens.text(start - 1) in {";", "{", "}"} and tokens.text(start) not in _NO_FUNCTIONS:
        _check_declaration(tokens, list(range(start, place + 2)))
