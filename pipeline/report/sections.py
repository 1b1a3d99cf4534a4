"""The report's sections on figures: perplexity, text, vocabulary, layers, store and tasks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from elmo.tasks.metrics import score_order

from .page import Block, Details, Heading, Paragraph, Picture, Table
from .phrases import (
    ARMS,
    SIMPLE,
    UNKNOWN,
    interval_text,
    unknown_words_remark,
    versus_unigram,
)
from .results import SENTENCES, TEXTS, JsonObject, Results

if TYPE_CHECKING:
    from elmo.data.shards import Shards
    from elmo.store import FeatureStore

SAMPLES = 6  # sentences of a text that are shown
SHARDS = 4  # of the general text that are read for them: at a URL each is fetched whole
FILES = 12  # of a text whose names are shown; the others are folded away


def summary(results: Results) -> str:
    """Return the sentences at the head of the page: the held-out perplexities, and their worth."""
    after = results.scores.under("after")
    figures = after.under("domain" if "domain" in after else "general")
    return (
        f"{_headline(results)} The model is as unsure of a word as between "
        f"{figures['average']:.0f} equally likely ones; by word counts alone it would be "
        f"{figures['unigram']:.0f}{unknown_words_remark(figures['unk_rate'])}."
    )


def _headline(results: Results) -> str:
    pretrain, tuned = results.figures["pretrain"], results.figures["finetune"]
    if results.started_from and results.tuned:
        return (
            f"Held-out perplexity {tuned['domain_perplexity_before']:.1f} on domain text before "
            f"fine-tuning {results.started_from}, {tuned['domain_perplexity_after']:.1f} after."
        )
    general = ""
    if "times_below_unigram" in pretrain:
        general = (
            f"Held-out perplexity {pretrain['heldout_perplexity']:.1f} on general text, "
            f"{versus_unigram(pretrain['times_below_unigram'])} the unigram model's. "
        )
    if not results.tuned:
        return f"{general}The domain text is the general text, so nothing was fine-tuned."
    return (
        f"{general}Fine-tuning took domain text from {tuned['domain_perplexity_before']:.1f} to "
        f"{tuned['domain_perplexity_after']:.1f}."
    )


def perplexities(results: Results) -> list[Block]:
    """Return a table of the held-out perplexities, and a paragraph that explains it.

    Of a model that was trained elsewhere the domain text comes first.
    """
    figures, scores, started_from = results.figures, results.scores, results.started_from
    if "before" not in scores:
        return [_perplexity_of_one(scores.under("after").under("general"))]
    rows = []
    for text, title in reversed(TEXTS.items()) if started_from else TEXTS.items():
        before, after = scores.under("before").under(text), scores.under("after").under(text)
        change = after["average"] / before["average"] - 1
        rows.append(
            (
                title.capitalize(),
                *(
                    f"{value:.1f}"
                    for value in (after["unigram"], before["average"], after["average"])
                ),
                f"{change:+.1%}".replace("-", "−"),
                f"{after['unigram'] / after['average']:.2f} ×",
                f"{after['bits_per_byte']:.3f}",
                f"{after['tokens']:,}",
                f"{after['unk_rate']:.1%}",
            )
        )
    head = (
        "Held-out",
        "unigram",
        "pretrained",
        "fine-tuned",
        "change",
        "below unigram",
        "bits per byte",
        "tokens",
        "unknown",
    )
    pretrain, added = figures["pretrain"], figures["finetune"]["words_added"]
    note = ""
    if "times_below_unigram" in pretrain:
        note = (
            f"With its own vocabulary {started_from or 'the pretrained model'} has "
            f"{pretrain['heldout_perplexity']:.1f} on general text (forward "
            f"{pretrain['heldout_forward']:.1f}, backward {pretrain['heldout_backward']:.1f}; "
            f"unigram model {pretrain['unigram_perplexity']:.1f}). "
        )
    note += (
        "The table and the picture compare both models under the fine-tuned one's vocabulary, "
        f"which has {added:,} words more; before training these share the probability of <UNK>."
    )
    blocks: list[Block] = [Table(rows, head=head), Paragraph(note)]
    rate = max(scores.under("after").under(text)["unk_rate"] for text in TEXTS)
    if rate >= UNKNOWN:
        blocks.append(
            Paragraph(
                f"Up to {rate:.0%} of the tokens are unknown words, which all count as one and are "
                "easily guessed: this flatters a perplexity. Bits per byte tell more."
            )
        )
    return blocks


def _perplexity_of_one(figures: JsonObject) -> Table:
    """The table of a project of one text, whose model was pretrained alone."""
    row = (
        TEXTS["general"].capitalize(),
        f"{figures['unigram']:.1f}",
        f"{figures['average']:.1f}",
        f"{figures['unigram'] / figures['average']:.2f} ×",
        f"{figures['bits_per_byte']:.3f}",
        f"{figures['tokens']:,}",
        f"{figures['unk_rate']:.1%}",
    )
    head = ("Held-out", "unigram", "pretrained", "below unigram", "bits per byte", "tokens")
    return Table([row], head=(*head, "unknown"))


def training() -> Paragraph:
    """Return a paragraph that explains the curves of training."""
    return Paragraph(
        "Held-out perplexity is the mean of both directions under the full softmax. Training "
        "perplexity is that of the loss: with dropout, and under the softmax of the settings."
    )


def files(texts: JsonObject | None) -> list[Block]:
    """Return the names of the files that were read, and what was left out of them, by reason.

    `texts` are those of the corpus manifest; without them there are no blocks.
    """
    if texts is None:
        return []
    blocks: list[Block] = []
    for text, title in TEXTS.items():
        files = [(one["name"], f"{one['bytes']:,}") for one in texts.under(text)["inputs"]]
        blocks.append(Table(files[:FILES], head=(f"Files of the {title}", "bytes")))
        if more := files[FILES:]:
            blocks.append(Details(f"{len(more)} more", [Table(more, numbers=True)]))
        if rows := _left_out(texts.under(text)):
            head = ("Reason", "paragraphs", "such as")
            title = f"Paragraphs left out of the {title}"
            blocks.append(Details(title, [Table(rows, head=head, words=(0, 2))]))
    return blocks


def _left_out(text: JsonObject) -> list[tuple[str, str, str]]:
    """Return why paragraphs were left out, of how many that is so, and a few of them."""
    counts, samples = text.get("dropped_paragraphs", {}), text.get("dropped_samples", {})
    return [
        (reason, f"{count:,}", Markup("<br>").join(samples.get(reason, ())))
        for reason, count in counts.items()
        if count
    ]


def text_figures(figures: Mapping[str, JsonObject]) -> list[Block]:
    """Return the counts of both texts; those that are zero are folded away.

    They are the `figures` of the stages "tokenize-general" and "tokenize-domain".
    """
    both = [figures[f"tokenize-{text}"] for text in TEXTS]
    names = {
        "documents": "Documents",
        "sentences": "Sentences",
        "blank_lines": "Blank lines",
        "tokens": "Tokens",
        "heldout_tokens": "Tokens held out",
        "long_tokens": "Tokens too long, cut",
        "bytes": "Bytes of text",
        "token_bytes": "Bytes in tokens",
    }
    dropped = sorted(
        {
            name
            for figures_of_text in both
            for name in figures_of_text
            if name.startswith("dropped_")
        }
    )
    names |= {name: f"Dropped, {_reason(name)}" for name in dropped}
    others = {
        "not_text_sentences": "Sentences that hardly look like text",
        "odd_script_sentences": "Sentences in an unusual script",
    }
    rows: list[tuple[str, ...]] = []
    zeros: list[tuple[str, ...]] = []
    for name, title in (names | others).items():
        row = (title, *(f"{text.get(name, 0):,}" for text in both))
        (rows if any(text.get(name) for text in both) else zeros).append(row)
    rows.append(("Duplicates among sentences", *(f"{f['duplicate_share']:.1%}" for f in both)))
    head = ("", *TEXTS.values())
    blocks: list[Block] = [Table(rows, head=head)]
    return blocks + ([Details("What did not occur", [Table(zeros, head=head)])] if zeros else [])


def _reason(name: str) -> str:
    reason, unit = name.removeprefix("dropped_").rsplit("_", 1)
    return f"{reason.replace('_', ' ')} ({unit})"


def samples(store: "FeatureStore", general: "Shards | None" = None) -> list[Block]:
    """Return sentences of each text as they were cut, and some that are hardly text.

    The domain text is that of the store; of `general`, if it is another, a few shards are read.
    """
    texts = {"domain": [store.tokens(k) for k in _spread(len(store), SENTENCES)]}
    if general is not None and general.digest not in {one.source.digest for one in store.manifests}:
        entries = general.entries("train")
        opened = [general.open(entries[k]) for k in _spread(len(entries), SHARDS)]
        texts["general"] = [
            one.tokens(k) for one in opened for k in _spread(len(one), SENTENCES // len(opened))
        ]
    blocks: list[Block] = []
    for text, title in TEXTS.items():
        sentences = [tokens for tokens in texts.get(text, ()) if tokens]
        odd = [tokens for tokens in sentences if _hardly_text(tokens)]
        usual = [tokens for tokens in sentences if not _hardly_text(tokens)]
        blocks += [
            Details(
                title, [Table([(" ".join(some[k])[:300],) for k in _spread(len(some), SAMPLES)])]
            )
            for title, some in (
                (f"{title.capitalize()} as it was cut", usual),
                (f"Sentences of the {title} that hardly look like text", odd),
            )
            if some
        ]
    return blocks


def _spread(count: int, most: int) -> range:
    """Return at most `most` of the numbers below `count`, spread evenly."""
    return range(0, count, -(-count // most) or 1)


def _hardly_text(tokens: Sequence[str]) -> bool:
    """Tell whether most tokens have no letter, as the quality of a text is counted."""
    return 2 * sum(not any(map(str.isalpha, token)) for token in tokens) > len(tokens)


def vocabulary(vocab: JsonObject) -> Table:
    """Return a table of the counts of the vocabulary: `vocab`, the figures of its stage."""
    rows = [
        ("Words", f"{vocab['words']:,}"),
        ("Distinct tokens", f"{vocab['types']:,}"),
        ("Training tokens", f"{vocab['tokens']:,}"),
        ("Training tokens covered", f"{vocab['coverage']:.2%}"),
        ("Held-out tokens covered", f"{vocab['heldout_coverage']:.2%}"),
        ("Characters", f"{vocab['characters']:,}"),
        ("Tokens cut to fit", f"{vocab['long_tokens']:,}"),
    ]
    return Table(rows, numbers=True)


def layers(by_layer: Mapping[str, Mapping[str, float]]) -> list[Block]:
    """Return a table of the statistics of each layer, and a paragraph that explains it.

    `by_layer` is what `layer_statistics` returns.
    """
    rows = [
        (name.replace("_", " "), f"{row['norm']:.2f}", f"{row['cosine']:.3f}")
        for name, row in by_layer.items()
    ]
    note = (
        f"Over up to {SENTENCES} sentences spread evenly through the store. Layer 0 sees the "
        "characters of a token alone, the others its sentence; the cosine is that of two "
        "different tokens of one sentence."
    )
    return [Paragraph(note), Table(rows, head=("Layer", "mean norm", "mean cosine"))]


def store(opened: "FeatureStore") -> Table:
    """Return a table of what the store holds, and how."""
    counts, layout = opened.counts, opened.layout
    rows = [
        ("Sentences", f"{counts.sentences:,}"),
        ("Tokens", f"{counts.tokens:,}"),
        ("Layers", ", ".join(name.replace("_", " ") for name in layout.layers)),
        ("Numbers in a vector", f"{layout.dim:,}, {layout.dtype}"),
        ("Compression", layout.codec),
        ("Parts", f"{counts.parts:,}"),
        ("Bytes", f"{counts.bytes:,}"),
        ("Bytes per token", f"{counts.bytes / max(1, counts.tokens):,.0f}"),
        ("Tokens of a row group, at most", f"{layout.row_group_tokens:,}"),
    ]
    return Table(rows, numbers=True)


def tasks(by_task: Mapping[str, JsonObject], pictures: Path) -> list[Block]:
    """Return what each task scored on its test file with ELMo and without, with its picture.

    `by_task` has the figures of tasks by their names, the folder `pictures` a file NAME.png for
    each.
    """
    titles = ARMS | SIMPLE

    blocks: list[Block] = []
    for name, figures in by_task.items():
        arms = {arm: figures.under(arm) for arm in titles if arm in figures}
        names = [key for key in next(iter(arms.values())) if not key.endswith("_sd")]
        scores = sorted(names, key=score_order)
        rows = [(titles[arm], *(_score(row, key) for key in scores)) for arm, row in arms.items()]
        blocks += [Heading(name), Table(rows, head=("", *scores))]
        examples = figures.under("examples")
        blocks.append(
            Paragraph(
                f"{_seeds(figures)}; {examples['test']:,} test examples, "
                f"{examples['train']:,} to learn from.{_gain(figures)}"
            )
        )
        blocks.append(Picture(name, (pictures / f"{name}.png").read_bytes()))
    return blocks


def _seeds(figures: JsonObject) -> str:
    seeds = figures["seeds"]
    return "One seed" if seeds == 1 else f"Mean of {seeds} seeds ± the standard deviation"


def _gain(figures: JsonObject) -> str:
    """Return what ELMo gains, with both intervals; nothing where one arm was trained alone."""
    if "gain" not in figures:
        return ""
    seeds = ""
    if figures["gain_low"] is not None:
        interval = interval_text(figures["gain_low"], figures["gain_high"])
        seeds = f"over seeds is {interval} (Student's t), "
    units = interval_text(figures["gain_test_low"], figures["gain_test_high"])
    return (
        f" With ELMo {figures['gain']:+.3f}: the 95 % interval {seeds}over the test examples "
        f"{'' if seeds else 'is '}{units} (paired bootstrap)."
    )


def _score(figures: JsonObject, name: str) -> str:
    deviation = f" ± {figures[name + '_sd']:.3f}" if name + "_sd" in figures else ""
    return f"{figures[name]:.3f}{deviation}"
