"""A class of the user's -> the code that decides what it does: what a fingerprint is made of.

The class and whatever of the user's files it names, directly or through others, without comments and docstrings; no
more than that, so that a grid may grow in the same file. Names are followed as written: a local variable that shares
the name of something at the top level brings it in, and what is looked up by a computed name is missed. Installed
packages and smelt itself are known by their versions and their own fingerprint.
"""

import ast
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from smelt.errors import BadInput

PACKAGE = Path(__file__).resolve().parent.parent


@cache
def own_source(part: type) -> str:
    """The bare code of a class and of all in the user's files that it names."""
    module = sys.modules.get(part.__module__)
    found: dict[tuple[str, str], str] = {}
    if module is not None and _text(module):
        _collect(module, part.__qualname__, found)
    if not found:
        raise BadInput(f"the source of {part.__name__} is not at hand: define it at the top level of a file")
    return "".join(sorted(found.values()))


def _text(module: ModuleType) -> str:
    """What was executed, where the experiment kept it: its file may be edited while its runs train."""
    if source := getattr(module, "__source__", None):
        return source
    path = getattr(module, "__file__", None) or ""
    return Path(path).read_text() if path.endswith(".py") else ""


def _collect(module: ModuleType, name: str, found: dict[tuple[str, str], str]) -> None:
    """Add the statements that bind `name` at the top level of a module, and of all that they name in turn."""
    text = _text(module)
    statements = _bindings(text).get(name, [])
    key = (module.__name__, name)
    if key in found or not statements:
        return
    found[key] = "".join(bare_code(_lines(text, statement)) for statement in statements)
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and not statement.level:
            original = next(alias.name for alias in statement.names if name in (alias.asname, alias.name))
            _follow(sys.modules.get(statement.module or ""), original, found)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                _collect(module, node.id, found)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                _follow(vars(module).get(node.value.id), node.attr, found)


def _follow(other: Any, name: str, found: dict[tuple[str, str], str]) -> None:
    """The same in another module, where that is a file of the user's and not an installed one."""
    path = Path(getattr(other, "__file__", None) or "") if isinstance(other, ModuleType) else Path()
    library = path.is_relative_to(sysconfig.get_path("stdlib")) or path.is_relative_to(PACKAGE)
    installed = library or {"site-packages", "dist-packages"} & set(path.parts)
    if path.suffix == ".py" and not installed:
        _collect(other, name, found)


@lru_cache(maxsize=16)
def _bindings(text: str) -> dict[str, list[ast.stmt]]:
    """Name -> the top-level statements of a file that bind it."""
    bindings: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(text).body:
        for name in set(_bound(statement)):
            bindings.setdefault(name, []).append(statement)
    return bindings


def _bound(node: ast.AST) -> Iterator[str]:
    """Names bound at the level where a statement stands; functions, classes and comprehensions keep theirs."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif not isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _lines(text: str, statement: ast.stmt) -> str:
    first = min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", []))])
    return "\n".join(text.splitlines()[first - 1 : statement.end_lineno]) + "\n"


BLOCKS = {tokenize.INDENT: "{", tokenize.DEDENT: "}"}


def bare_code(source: str) -> str:
    """Python source without comments, blank lines, bare strings and the width of its indents.

    >>> bare_code("if x:  # one\\n\\n  'a docstring'\\n  y = 1\\n")
    'ifx:\\n{y=1\\n}'
    """
    kept: list[str] = []
    statement_starts = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        bare_string = token.type == tokenize.STRING and statement_starts
        if not bare_string and not (token.type == tokenize.NEWLINE and statement_starts):
            kept.append(BLOCKS.get(token.type, "\n" if token.type == tokenize.NEWLINE else token.string))
        starts = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
        statement_starts = token.type in starts or bare_string
    return "".join(kept)
