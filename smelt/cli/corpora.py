"""Verbs on corpora: corpus build, info, verify."""

from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from smelt import terminal
from smelt.cli.words import Json, print_json, say
from smelt.errors import EXIT_DONE, EXIT_FAILED, BadInput

CorpusName = Annotated[Positional[str], arg(metavar="NAME", help="a built corpus, or a path to one")]


def corpus() -> int:
    """Build, inspect and verify corpora: smelt corpus build, smelt corpus info, smelt corpus verify."""
    raise BadInput("smelt corpus wants a verb: build, info or verify (smelt corpus build --help)")


def build(
    recipe: Annotated[
        Positional[str], arg(metavar="NAME", help="builtin, or a name of your own with --text or --tokens")
    ] = "builtin",
    *,
    tokenizer: Annotated[str, arg(help="bytes, bpe:SIZE (trained here), or a path to a tokenizer.json")] = "bytes",
    text: Annotated[
        tuple[str, ...], arg(help="DOMAIN=PATH: .txt, .md, .jsonl or .parquet; a file, folder or glob")
    ] = (),
    column: Annotated[str, arg(help="field of JSON lines and parquet that holds the text")] = "text",
    tokens: Annotated[tuple[Path, ...], arg(help="pre-tokenised files, see --format")] = (),
    validation_tokens: Annotated[tuple[Path, ...], arg(help="pre-tokenised files that are held out as they are")] = (),
    format: Annotated[Literal["nanogpt", "llmc", "megatron"], arg(help="of --tokens")] = "nanogpt",
    dtype: Annotated[Literal["uint16", "uint32"], arg(help="integer type of nanogpt files")] = "uint16",
    vocab_size: Annotated[int | None, arg(help="vocabulary of --tokens")] = None,
    separator: Annotated[str | None, arg(help="text that separates documents; with --tokens, an id")] = None,
    validation_bytes: Annotated[int | None, arg(help="text held out a domain; the recipe's own where left out")] = None,
    licence: Annotated[str | None, arg(help="licence of your own text, kept in the manifest")] = None,
    name: Annotated[
        str | None, arg(help="folder under corpora/; the recipe's and tokenizer's name where left out")
    ] = None,
    force: Annotated[bool, arg(help="replace another corpus of that name")] = False,
    json: Json = False,
) -> int:
    """Build a corpus: text is read, split by document, checked for near duplicates, tokenised and packed.

    e.g. smelt corpus build; smelt corpus build builtin --tokenizer bpe:4096; smelt corpus build mine --text
    prose=books code=src/data.jsonl; smelt corpus build gpt2 --tokens train.bin --vocab-size 50257 --separator 50256
    """
    from smelt.data import corpus as corpora

    _refuse_unread(
        "--tokens" if tokens else "--text" if text else "",
        {
            "--text": (text or None, ("--text",)),
            "--tokenizer": (None if tokenizer == "bytes" else tokenizer, ("", "--text")),
            "--validation-bytes": (validation_bytes, ("--text",)),
            "--licence": (licence, ("--text", "--tokens")),
            "--separator": (separator, ("--text", "--tokens")),
            "--validation-tokens": (validation_tokens or None, ("--tokens",)),
            "--vocab-size": (vocab_size, ("--tokens",)),
        },
    )
    if tokens:
        built = _from_tokens(
            recipe, tokens, validation_tokens, format, dtype, vocab_size, separator, licence, name, force
        )
    elif text:
        built = corpora.build(
            _text_recipe(recipe, text, column, separator, licence, validation_bytes),
            tokenizer=tokenizer,
            name=name,
            force=force,
            progress=say,
        )
    else:
        built = corpora.build(recipe, tokenizer=tokenizer, name=name, force=force, progress=say)
    print_json(corpora.info(built)) if json else _print_info(corpora.info(built))
    return EXIT_DONE


def _refuse_unread(source: str, options: dict[str, tuple[Any, tuple[str, ...]]]) -> None:
    """An option that nothing would read is a misunderstanding, and another corpus than the user has in mind."""
    for option, (value, sources) in options.items():
        if value is not None and source not in sources:
            wanted = " or ".join(name or "builtin" for name in sources)
            raise BadInput(f"{option} says nothing about {source or 'builtin'}: it goes with {wanted}; leave it out")


def _text_recipe(
    name: str, text: tuple[str, ...], column: str, separator: str | None, licence: str | None, held_out: int | None
) -> Any:
    from smelt.data import sources

    paths: dict[str, list[str]] = {}
    for word in text:
        domain, equals, path = word.partition("=")
        if not (domain and equals and path):
            raise BadInput(f"--text {word!r} is no DOMAIN=PATH")
        paths.setdefault(domain, []).append(path)
    options: dict[str, Any] = {} if held_out is None else {"validation_bytes": held_out}
    licences = dict.fromkeys(paths, licence) if licence else None
    return sources.text_recipe(name, paths, column=column, separator=separator, licences=licences, **options)


def _from_tokens(
    name: str,
    paths: tuple[Path, ...],
    held_out: tuple[Path, ...],
    kind: Any,
    dtype: Any,
    vocab_size: int | None,
    separator: str | None,
    licence: str | None,
    folder: str | None,
    force: bool,
) -> Any:
    from smelt.data import corpus as corpora
    from smelt.data import formats

    if vocab_size is None:
        raise BadInput("--tokens needs --vocab-size: the files do not say it")
    if separator is not None and not separator.isdecimal():
        raise BadInput(f"--separator {separator!r} is no token id: with --tokens give a number")
    separator_id = None if separator is None else int(separator)
    recipe = formats.token_recipe(
        name,
        kind,
        paths,
        vocab_size=vocab_size,
        separator_id=separator_id,
        validation_paths=held_out,
        dtype=dtype,
        licence=licence,
    )
    return corpora.import_tokens(
        recipe, vocab_size=vocab_size, separator_id=separator_id, name=folder or name, force=force, progress=say
    )


def info(corpus: CorpusName = "builtin", *, json: Json = False) -> int:
    """Show a corpus: bytes, documents, licence and digest of each domain. e.g. smelt corpus info builtin --json"""
    from smelt.data import corpus as corpora

    found = corpora.info(corpora.open_corpus(corpus))
    print_json(found) if json else _print_info(found)
    return EXIT_DONE


def _print_info(found: dict[str, Any]) -> None:
    print(f"{found['name']} at {found['path']}, fingerprint {found['fingerprint']}")
    domains = found["domains"]
    rows = [
        [
            domain,
            terminal.num_bytes(facts["num_bytes"]),
            str(facts["num_documents"]),
            facts["sha256"][:12],
            "; ".join(sorted({licence or "not stated" for licence in facts["licences"].values()})),
        ]
        for domain, facts in domains.items()
    ]
    print(terminal.table(["domain", "bytes", "documents", "sha256", "licence"], rows))
    print(f"{found['train']['num_tokens']:,} training tokens")


def verify(corpus: CorpusName = "builtin", *, json: Json = False) -> int:
    """Hash every file of a corpus and look at every token; exit 1 with a line a problem. e.g. smelt corpus verify"""
    from smelt.data import corpus as corpora

    problems = corpora.verify(corpus)
    if json:
        print_json(problems)
    else:
        print("\n".join(problems) or f"{corpus}: whole")
    return EXIT_FAILED if problems else EXIT_DONE
