"""corpus: the text that the pipeline starts from, the user's files or Python's documentation.

Without the user's files, the general text is the Python language reference and the standard
library's docstrings, and the domain text the docstrings of an installed package. A document is a
topic or a docstring, with one paragraph per line; blank lines separate documents. Text from
unchanged versions of Python and the package is not rendered again. The user's files are not copied:
only their digests are written. The stage runs in each `elmo run` to check whether the files have
changed.
"""

import platform
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs, to_builtins

from elmo.errors import ElmoError
from elmo.io.atomic import check_output_record, write_json
from elmo.io.folders import link_folder, new_folder
from elmo.io.location import Location
from elmo.io.records import Count, Header, Sha256, sha256
from elmo.model.config import read_config

from ..settings.params import CorpusSettings, Params
from ..terminal.progress import human_size
from ..terminal.urls import hide_credentials, with_login
from ..text.docstrings import folder_docstrings, package_docstrings, plain_paragraphs
from ..text.input_files import InputFile, find_inputs
from ..text.text_blocks import check_texts
from ..text.work_folder import work_folder
from . import STAGES, load_stage
from .stage import OUT_ARGUMENT, Argument, Figures, Stage

CORPUS_SCHEMA = 3
TextName = Literal["general", "domain"]
_EXCLUDED_FOLDERS = {"site-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload"}
# The text files that this stage writes; users' files stay where they are.
_FILE_PATTERN = r"general/(reference|library)\.txt|(domain|task)/[^/]+\.txt"


class TextFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a text as the corpus manifest lists it.

    A file without a `url` was written by the stage to the corpus folder. The `url` has no login.
    """

    name: str
    bytes: Count
    sha256: Sha256
    url: str | UnsetType = UNSET

    def to_input(self, corpus: Location, urls: Iterable[str] = ()) -> InputFile:
        """Return this file as the `InputFile` that the tokenize stage reads.

        `corpus` is the folder whose manifest lists the file. `urls` are the URLs as the user wrote
        them, with their logins.
        """
        if self.url is UNSET:
            url = corpus.absolute().path_of(self.name)
        else:
            url = with_login(Location(self.url).absolute().url, urls)
        return InputFile(self.name, url, self.bytes, self.sha256)


class CorpusText(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the two texts of the corpus: its files, the column that holds it, and its counts.

    `counts` has the numbers of bytes and files or, for a text made from documentation, of bytes,
    documents and words. `rendered` has the versions that a text made from documentation depends on,
    unless its code is under development. `keep` names the columns to keep.
    """

    column: str
    inputs: Annotated[tuple[TextFile, ...], Meta(min_length=1)]
    counts: dict[str, Count]
    rendered: dict[str, str] | UnsetType = UNSET
    keep: tuple[str, ...] | UnsetType = UNSET


class CorpusManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a corpus folder's `manifest.json`: the texts "general" and "domain" by name.

    `schema` is the version of the file's format.
    """

    kind: Literal["corpus"]
    schema: int
    texts: dict[TextName, CorpusText]


def _run_command(
    params: Params, packages: Path | None, versions: Path | None, **arguments: Any
) -> Figures:
    figures = run(params=params.corpus, **arguments)
    if packages is not None:
        # DVC tracks this file: stages whose text comes from a package run again after an upgrade.
        check_output_record(packages, dict[str, list[str]])
        domain_package = params.corpus.domain_package if not params.corpus.domain else ""
        names = sorted({domain_package, params.labels.package} - {""})
        write_json(packages, {name: _find_versions(name) for name in names})
    if versions is not None:
        check_output_record(versions, dict[str, int | str])
        version_by_stage: dict[str, int | str] = {name: load_stage(name).version for name in STAGES}
        if params.pretrain.model:
            digest = read_config(params.pretrain.model).digest
            version_by_stage["pretrain"] = f"{version_by_stage['pretrain']}, model {digest}"
        write_json(versions, version_by_stage)
    return figures


STAGE = Stage(
    name="corpus",
    version=3,
    help="Collect the text: your own files, or English prose that comes with Python.",
    inputs=(),
    outputs=(
        OUT_ARGUMENT,
        Argument("packages", "path", "The file for the packages' versions.", required=False),
        Argument("versions", "path", "The file for the stages' versions.", required=False),
    ),
    run=_run_command,
    summary=lambda figures, arguments: summary(figures, arguments["out"]),
)


def run(out: Location, params: CorpusSettings, *, work: Location) -> dict[str, float]:
    """Write `general/`, `domain/` and `manifest.json` to `out`; return the counts of both texts.

    The counts have names such as `general_bytes`. Only names and digests of the user's files are
    written. `work` is the folder for unfinished work.
    """
    if params.general and not params.domain:
        raise ElmoError(
            "corpus.domain is empty but corpus.general is not; name the files of your domain in "
            "corpus.domain, or repeat those of corpus.general"
        )
    new_corpus = new_folder(out, required=("manifest.json",), pattern=_FILE_PATTERN, kind="corpus")
    with work_folder(work, "corpus", out), new_corpus as folder:
        if params.domain:  # first, since the package may be missing
            domain = _list_user_files(params.domain, params.column, params.keep)
        else:
            name = params.domain_package
            package = package_docstrings(name, setting="corpus.domain_package")
            versions = _find_released_versions(name)
            documents = {f"{name}.txt": package}
            domain = _render_or_link(out.local, folder, "domain", versions, documents)
        if params.general:
            general = _list_user_files(params.general, params.column)
        else:
            versions = {"Python": platform.python_version()}
            documents = _list_python_documents()
            general = _render_or_link(out.local, folder, "general", versions, documents)
        manifest = CorpusManifest("corpus", CORPUS_SCHEMA, {"general": general, "domain": domain})
        write_json(folder / "manifest.json", to_builtins(manifest))
    return {
        f"{name}_{unit}": number
        for name, text in manifest.texts.items()
        for unit, number in text.counts.items()
    }


def summary(figures: dict[str, float], out: Location) -> str:
    """Return the line that the stage prints: the sizes in `figures` and the files in `out`."""
    return (
        f"{human_size(figures['general_bytes'])} general ({describe_files(out, 'general')}), "
        f"{human_size(figures['domain_bytes'])} domain ({describe_files(out, 'domain')})"
    )


def read_corpus_manifest(folder: Location) -> CorpusManifest:
    """Read the manifest of a corpus folder; raise `ElmoError` if a name in it leaves the folder."""
    path, header = folder.path_of("manifest.json"), folder.read_record("manifest.json", Header)
    header.check_version(path, "schema", CORPUS_SCHEMA, remedy="run the corpus stage")
    manifest = folder.read_record("manifest.json", CorpusManifest)
    for name, text in manifest.texts.items():
        for file in text.inputs:
            parts = file.name.split("/")
            if file.url is UNSET and (parts[0] != name or not set(parts).isdisjoint({"", ".."})):
                raise ElmoError(f"{path}: no file {file.name!r} here; run: elmo run corpus")
    return manifest


def describe_files(folder: Location, text: TextName) -> str:
    """Return the names of a text's first four files and the number of others, for the terminal."""
    names = [source.name for source in read_corpus_manifest(folder).texts[text].inputs]
    suffix = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + suffix


def _find_versions(package: str) -> list[str]:
    """Return the versions of the projects that installed a package, [] for the standard library."""
    try:
        return [metadata.version(package)]
    except metadata.PackageNotFoundError:  # the project has another name; the search is slow
        projects = metadata.packages_distributions().get(package.split(".")[0], ())
        return [metadata.version(project) for project in sorted(set(projects))]


def _list_python_documents() -> dict[str, Iterator[str]]:
    """Return the documents of each file of the general text."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    library = Path(sysconfig.get_path("stdlib"))
    return {
        "reference.txt": (topics[name] for name in sorted(topics)),
        "library.txt": folder_docstrings(library, _EXCLUDED_FOLDERS),
    }


def _find_released_versions(package: str) -> dict[str, str]:
    """Return the version of an installed package; {} for code under development."""
    spec = util.find_spec(package)
    site_folders = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    locations = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    if not any(folder in path.parents for path in locations for folder in site_folders):
        return {}
    return {package: ", ".join(_find_versions(package))}


def _render_or_link(
    out: Path | None,
    folder: Path,
    text: TextName,
    versions: dict[str, str],
    files: dict[str, Iterator[str]],
) -> CorpusText:
    """Write a text to `folder`, or link the text in `out` if the same versions made it."""
    if not versions or out is None:
        return _write_text(folder, text, files)
    all_versions = versions | {"results": str(STAGE.version)}
    try:
        previous_entry = read_corpus_manifest(Location(out)).texts[text]
        is_whole = all(sha256(out / file.name) == file.sha256 for file in previous_entry.inputs)
        if is_whole and previous_entry.rendered == all_versions:
            link_folder(out / text, folder / text)
            return previous_entry
    except (ElmoError, OSError, KeyError):
        pass  # no corpus, or an incomplete one: render it
    return structs.replace(_write_text(folder, text, files), rendered=all_versions)


def _write_text(folder: Path, text: TextName, files: dict[str, Iterator[str]]) -> CorpusText:
    """Write one text's files below `folder`; return its entry of the manifest."""
    known_paragraphs: set[str] = set()
    inputs, documents, words = [], 0, 0
    (folder / text).mkdir()
    for name, raw_documents in files.items():
        path = folder / text / name
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for document in _clean_documents(raw_documents, known_paragraphs):
                file.write("\n" * (file.tell() > 0) + "".join(f"{line}\n" for line in document))
                documents += 1
                words += sum(len(line.split()) for line in document)
        inputs.append(TextFile(f"{text}/{name}", path.stat().st_size, sha256(path)))
    counts = {"documents": documents, "words": words, "bytes": sum(file_.bytes for file_ in inputs)}
    return CorpusText("text", tuple(inputs), counts)


def _clean_documents(
    raw_documents: Iterable[str], known_paragraphs: set[str]
) -> Iterator[list[str]]:
    """Yield the prose of each document without repeated paragraphs, if any is left."""
    for raw_document in raw_documents:
        paragraphs = []
        for paragraph in plain_paragraphs(raw_document):
            if paragraph not in known_paragraphs:
                known_paragraphs.add(paragraph)
                paragraphs.append(paragraph)
        if paragraphs:
            yield paragraphs


def _list_user_files(
    patterns: tuple[str, ...], column: str, keep: tuple[str, ...] = ()
) -> CorpusText:
    """Return the manifest's entry of the user's files: names and digests."""
    inputs = find_inputs(patterns)
    check_texts(inputs, column, keep=keep)
    files = tuple(TextFile(i.name, i.bytes, i.sha256, hide_credentials(i.url)) for i in inputs)
    counts = {"files": len(inputs), "bytes": sum(i.bytes for i in inputs)}
    return CorpusText(column, files, counts, keep=keep or UNSET)
