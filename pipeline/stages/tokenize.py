"""tokenize: split text into sentences and tokens, and write it as shards; one task per piece.

A piece numbers its sentences from 0; the manifest has its position in the corpus. So a shard
depends only on its text and the settings, and is named by their digest: if a file is added, only
this file is tokenized, and the other shards are reused from the replaced output. The bytes do not
depend on the number or order of workers, interruptions, or the replaced output.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from elmo.data.manifest import (
    SPLITS,
    CorpusFile,
    ShardEntry,
    ShardsCounts,
    TextQuality,
    TokenizerEntry,
    write_manifest,
)
from elmo.data.shards import SHARD_FILE_PATTERN
from elmo.data.tokenizer import TextTokenizer, Tokenization, installed_tokenization
from elmo.errors import BadSettings, ElmoError
from elmo.io.folders import check_output_folder, link_or_copy, output_location
from elmo.io.location import Location
from elmo.model.config import read_config

from ..cluster import workers
from ..settings.cluster import Cluster
from ..settings.params import Params, TokenizeSettings
from ..terminal.progress import human_size
from ..text import accounting, quality
from ..text.copies import find_copies, find_leaks, find_passages, find_repeated_lines
from ..text.held_out import MIN_HELD_OUT_TOKENS, choose_held_out_rule
from ..text.input_files import InputFile, catch_error, check_inputs, raise_as_one
from ..text.pieces import Piece, choose_piece_bytes, number_pieces, plan_pieces
from ..text.shard_builder import (
    PIECES_FILE,
    PieceResult,
    decode_results,
    encode_result,
    find_whole_results,
    read_finished,
    tokenize_piece,
)
from ..text.work_folder import discard_pieces, work_folder
from .corpus import TextName, read_corpus_manifest
from .stage import OUT_ARGUMENT, Argument, Stage

Job = TypeVar("Job")
Result = TypeVar("Result")
_OUTPUT_ARGUMENTS: dict[str, Any] = {  # how to recognize an earlier output
    "required": ("manifest.json",),
    "pattern": rf"{SHARD_FILE_PATTERN}|{re.escape(PIECES_FILE)}",
    "kind": "shards",
}
_PHRASE_BY_REASON = {  # for the summary: why lines were left out
    "short": "as documents under tokenize.min_bytes",
    "long": "as documents over tokenize.max_bytes",
    "symbols": "as documents over tokenize.max_symbols",
    "script": "as documents in a script that tokenize.scripts does not list",
    "copy": "as copies of earlier text",
    "near_copy": "as near-copies of earlier text",
    "repeated_line": "as lines repeated across documents",
    "leak": "because one text holds it out and the other trains on it",
}
_REMARKS = {  # by figure: the share of sentences above which to print the remark
    "not_text_sentences": (
        0.2,
        "{:,} sentences hardly look like text (most tokens have no letter)",
    ),
    "duplicate_share": (0.2, "about {:,} sentences repeat others"),
    "wrapped_lines": (
        0.2,
        "{:,} lines end within a sentence: join each paragraph first, for example with awk "
        """-v RS= '{{$1=$1; print $0 "\\n"}}'""",
    ),
    "decomposed_tokens": (0.05, "{:,} tokens are not in NFC: convert the text with uconv -x nfc"),
}

STAGE = Stage(
    name="tokenize",
    version=7,
    help="Tokenize the general or domain text of CORPUS into Arrow shards.",
    inputs=(Argument("corpus"), Argument("text", "word", choices=("general", "domain"))),
    outputs=(OUT_ARGUMENT,),
    run=lambda **arguments: run(**arguments),
    summary=lambda figures, _: summary(figures),
    figure_by_metric={"tokens": "tokens"},
    resumes_in_output=True,
    uses_cluster=True,
    reuses_output=True,
)


def _choose_tokenization(params: Params) -> Tokenization:
    """Return the tokenization of the settings; with a named model, in the version of that model."""
    settings = params.tokenize
    tokenization = installed_tokenization(settings.tokenizer, settings.sentences)
    if params.pretrain.model:
        model_tokenization = read_config(params.pretrain.model).tokenizer
        if model_tokenization.name == tokenization.name:
            pattern, form = model_tokenization.pattern, model_tokenization.form
            return msgspec.structs.replace(tokenization, pattern=pattern, form=form)
    return tokenization


def _check_queries(params: Params) -> None:
    """Refuse a report query without one token in brackets, before hours of training."""
    from elmo.store.neighbors import parse_query

    tokenize = TextTokenizer(_choose_tokenization(params))
    for query in params.report.neighbors_of:
        try:
            parse_query(query, tokenize=tokenize)
        except ElmoError as error:
            raise BadSettings(f"params.yaml: report.neighbors_of: {error}") from None


def run(
    corpus: Location,
    out: Location,
    params: Params,
    *,
    text: TextName,
    work: Location,
    cluster: Cluster,
    previous_output: Location | None = None,
) -> dict[str, float]:
    """Write the shards of a corpus folder's text to `out`; return the counts, such as `tokens`.

    `text` is "general" or "domain". Finished pieces are kept in `work`, from which a killed run
    resumes. `previous_output` has the shards to be replaced, if they are not at `out`.
    """
    if text == "domain":
        _check_queries(params)
    # The corpus folder names URLs without logins.
    urls = (*params.corpus.general, *params.corpus.domain)
    texts = read_corpus_manifest(corpus).texts
    inputs = {
        name: [source.to_input(corpus, urls) for source in texts[name].inputs] for name in texts
    }
    digests, *digests_of_texts = ({file.sha256 for file in inputs[name]} for name in (text, *texts))
    domain = None  # leaks between the two are left out of the general text
    is_other_text = any(digests != text_digests for text_digests in digests_of_texts)
    if text == "general" and params.tokenize.heldout and is_other_text:
        domain = inputs["domain"], texts["domain"].column
    return tokenize(
        inputs[text],
        out,
        params.tokenize,
        column=texts[text].column,
        tokenization=_choose_tokenization(params),
        previous_output=previous_output,
        work=work,
        cluster=cluster,
        # A file that is in both texts must be held out in both or in neither.
        is_independent=all(digests == d or digests.isdisjoint(d) for d in digests_of_texts),
        domain=domain,
        keep=texts[text].keep or (),
    )


def summary(figures: dict[str, float]) -> str:
    """Return the line that the stage prints about the shards, from the counts of `run`."""
    heldout_tokens, sentences = figures["heldout_tokens"], figures["sentences"]
    remarks = [
        f"{figures['tokens']:,} tokens in {sentences:,} sentences, {figures['shards']} shards"
    ]
    if heldout_tokens < MIN_HELD_OUT_TOKENS:
        remarks.append(
            f"only {heldout_tokens:,} tokens are held out, too few to measure perplexity reliably: "
            "raise tokenize.heldout"
        )
    for reason, phrase in _PHRASE_BY_REASON.items():
        if size := figures.get(f"dropped_{reason}_bytes", 0):
            remarks.append(f"{human_size(size)} left out {phrase}")
    for name, (share, remark) in _REMARKS.items():
        count = figures.get(name, 0) * (sentences if name == "duplicate_share" else 1)
        if count > share * sentences:
            remarks.append(remark.format(round(count)))
    return "; ".join(remarks)


def tokenize(
    inputs: Sequence[InputFile],
    out: Location,
    params: TokenizeSettings,
    *,
    column: str,
    work: Location,
    cluster: Cluster,
    is_independent: bool = True,
    domain: tuple[Sequence[InputFile], str] | None = None,
    keep: tuple[str, ...] = (),
    tokenization: Tokenization | None = None,
    previous_output: Location | None = None,
) -> dict[str, float]:
    """Write the shards of `inputs` to `out`, and return the counts. An error leaves no shards.

    `column` is the column or field that holds the text of records. Finished pieces are kept in
    `work`, or at a URL in `out`, until all are done; an interrupted run resumes from them. Shards
    that are still valid are reused from `previous_output`, which is replaced (default: a local
    `out`). A text `is_independent` unless another text shares some of its files. With `domain`, the
    files of the domain text and their column, no text is held out in one and trained on in the
    other. `keep` names columns of records to keep with the sentences. `tokenization` is a version
    of the tokenizer (default: the installed one).
    """
    check_output_folder(out, **_OUTPUT_ARGUMENTS)
    tokenizer = tokenization or installed_tokenization(params.tokenizer, params.sentences)
    files = [CorpusFile(input_.name, input_.bytes, input_.sha256) for input_ in inputs]
    inputs = check_inputs(inputs)

    plan = partial(
        plan_text, out=out, params=params, tokenizer=tokenizer, is_independent=is_independent
    )
    pieces = plan(inputs, column)
    domain_pieces = plan(check_inputs(domain[0]), domain[1]) if domain else []
    with work_folder(work, "tokenize", out) as pieces_folder:
        if out.local is None:
            pieces_folder = out  # at a URL, shards are written to their final place
        pieces = [replace(piece, folder=pieces_folder, keep=keep) for piece in pieces]
        pieces = _leave_out_copies(pieces, domain_pieces, cluster)
        previous_results = _read_previous_results(previous_output or out, out, pieces)
        results = _tokenize_pieces(pieces, previous_results, cluster)
        account = accounting.sum_accounts(result.accounting for result in results)
        if not account.tokens:
            discard_pieces(pieces_folder)
            reasons = account.left_out
            phrases = [text for reason, text in _PHRASE_BY_REASON.items() if reason in reasons]
            problem = f"all is left out {', '.join(phrases)}" if phrases else "only white space"
            raise ElmoError(f"{inputs[0].url}: the text has no tokens, {problem}")
        counts, text_quality = (
            account.counts(),
            quality.summarize_quality([result.quality for result in results]),
        )
        shards = _list_shards(pieces, results)
        with output_location(out, **_OUTPUT_ARGUMENTS) as folder:
            previous_files = {e.file for result in previous_results.values() for e in result.shards}
            new_files = {entry.file for entry in shards} - previous_files
            if pieces_folder != folder:
                folder.take_files(sorted(new_files), pieces_folder)
            if previous_output is not None:
                folder.take_files(sorted(previous_files), previous_output)
            else:
                for name in previous_files:
                    link_or_copy(out.path_of(name), folder.path_of(name))
            folder.write(PIECES_FILE, b"".join(map(encode_result, results)))
            write_manifest(
                folder,
                shards=shards,
                documents_by_split={
                    "train": account.train_documents,
                    "heldout": account.heldout_documents,
                },
                tokenizer=TokenizerEntry(
                    **msgspec.structs.asdict(tokenizer),
                    documents=params.documents,
                    heldout=params.heldout,
                ),
                counts=counts,
                inputs=files,
                quality=text_quality,
            )
        pieces_folder.delete_all(piece.result_name for piece in pieces)
    return _collect_figures(counts, text_quality, shards)


def plan_text(
    inputs: Sequence[InputFile],
    column: str,
    *,
    out: Location,
    params: TokenizeSettings,
    tokenizer: Tokenization,
    is_independent: bool,
) -> list[Piece]:
    """Divide a text into pieces, and choose which documents are held out."""
    params = replace(params, shard_bytes=choose_piece_bytes(inputs, shard_bytes=params.shard_bytes))
    rule = choose_held_out_rule(inputs, params, column=column, is_independent=is_independent)
    spans_of_pieces = plan_pieces(inputs, shard_bytes=params.shard_bytes, documents=rule.documents)
    return [
        Piece(number, spans, out, params, rule, column, tokenizer, STAGE.version)
        for number, spans in enumerate(spans_of_pieces)
    ]


def run_tasks(
    function: Callable[[Job], Result | ElmoError], jobs: Sequence[Job], cluster: Cluster, label: str
) -> list[Result]:
    """Run `function` on each job as a task and return the results; raise all errors as one."""
    task = partial(catch_error, function)
    return raise_as_one([*workers.map_tasks(task, jobs, cluster=cluster, label=label)])


def _leave_out_copies(
    pieces: Sequence[Piece], domain_pieces: Sequence[Piece], cluster: Cluster
) -> list[Piece]:
    """Return the pieces, each with the lines to leave out: filtered ones, copies and leaks.

    A leak is text that is on the other side of the split in the domain text (`domain_pieces`).
    """
    all_pieces = [*pieces, *domain_pieces]
    passages = run_tasks(find_passages, all_pieces, cluster, "copies")
    passages, domain_passages = passages[: len(pieces)], passages[len(pieces) :]
    similarity = pieces[0].params.near_duplicates if pieces else 0.0
    exclusions = find_copies(passages, similarity=similarity)
    if domain_passages:
        leaks = find_leaks(passages, domain_passages, similarity=similarity)
        exclusions = [{**e, "leak": leak} for e, leak in zip(exclusions, leaks, strict=True)]
    repeated_lines: list[tuple[int, ...]] = [()] * len(pieces)
    if pieces and (document_count := pieces[0].params.repeated_lines):
        repeated_lines = find_repeated_lines(passages, document_count=document_count)
    plain_ranges = [
        tuple(
            (reason, tuple((start, stop) for start, stop in ranges.tolist()))
            for reason, ranges in excluded_lines.items()
            if len(ranges)
        )
        for excluded_lines in exclusions
    ]
    return number_pieces(
        replace(piece, excluded_lines=ranges, repeated_lines=hashes)
        for piece, ranges, hashes in zip(pieces, plain_ranges, repeated_lines, strict=True)
    )


def _read_previous_results(
    folder: Location, out: Location, pieces: Sequence[Piece]
) -> dict[str, PieceResult]:
    """Return by digest the results of the pieces whose shards in the replaced folder are intact."""
    if not folder.exists(PIECES_FILE) or (folder == out and out.local is None):
        return {}
    digests = {piece.digest for piece in pieces}
    results = decode_results(folder.read(PIECES_FILE))
    results = [result for result in results if result.piece in digests]
    return {result.piece: result for result in find_whole_results(results, folder, folder.sizes())}


def _tokenize_pieces(
    pieces: Sequence[Piece], previous_results: Mapping[str, PieceResult], cluster: Cluster
) -> list[PieceResult]:
    """Return the results of all pieces in order; finished pieces are not tokenized again."""
    new_pieces = [piece for piece in pieces if piece.digest not in previous_results]
    result_by_piece = {
        **previous_results,
        **{result.piece: result for result in read_finished(new_pieces)},
    }
    unfinished_pieces = [piece for piece in pieces if piece.digest not in result_by_piece]
    new_results = run_tasks(tokenize_piece, unfinished_pieces, cluster, "tokenize")
    result_by_piece.update((result.piece, result) for result in new_results)
    return [result_by_piece[piece.digest] for piece in pieces]


def _list_shards(pieces: Sequence[Piece], results: Sequence[PieceResult]) -> list[ShardEntry]:
    """Return the manifest's entries of all shards, train first, each with its corpus position: the
    number of sentences and documents in earlier pieces."""
    sentences = accumulate((result.accounting.sentences for result in results), initial=0)
    documents = accumulate((result.accounting.document_ids for result in results), initial=0)
    entries = [
        entry.with_corpus_position(
            sentences_before=sentence,
            documents_before=piece.spans[0].file_number
            if piece.rule.documents == "file"
            else document,
        )
        for piece, result, sentence, document in zip(
            pieces, results, sentences, documents, strict=False
        )
        for entry in result.shards
    ]
    return [entry for split in SPLITS for entry in entries if entry.split == split]


def _collect_figures(
    counts: ShardsCounts, text_quality: TextQuality, shards: Sequence[ShardEntry]
) -> dict[str, float]:
    quality_figures = {
        name: value for name, value in text_quality.items() if isinstance(value, int | float)
    }
    totals = msgspec.structs.asdict(counts)
    dropped_by_reason = totals.pop("dropped")
    return {
        **totals,
        **{f"dropped_{name}_bytes": reason.bytes for name, reason in dropped_by_reason.items()},
        **quality_figures,
        "heldout_tokens": sum(entry.tokens for entry in shards if entry.split == "heldout"),
        "shards": len(shards),
    }
