"""Readers of questions on paragraphs: SQuAD 1.1 and JSON lines."""

from collections import Counter

import msgspec

from elmo.errors import ElmoError
from elmo.io.records import parse_record
from elmo.io.text_files import read_whole_text
from elmo.tasks.examples import Example, Question, Range, Tokens
from elmo.tasks.formats.fields import (
    ExampleSet,
    ReadRequest,
    json_records,
    read_field,
    tokens_covering,
)


class _Answer(msgspec.Struct):
    text: str
    answer_start: int


class _SquadQuestion(msgspec.Struct):
    id: str
    question: str
    answers: list[_Answer] = []


class _Paragraph(msgspec.Struct):
    context: str
    qas: list[_SquadQuestion]


class _Article(msgspec.Struct):
    paragraphs: list[_Paragraph]
    title: str = ""


class _Squad(msgspec.Struct):
    data: list[_Article]
    version: str = ""


def read_squad(request: ReadRequest) -> ExampleSet:
    """Read the questions of a SQuAD 1.1 JSON file, each with its paragraph and, if the request
    needs labels, its reference answers."""
    squad = parse_record(read_whole_text(request.path), _Squad, source=str(request.path))
    examples: list[Example] = []
    counts: Counter[str] = Counter()
    for a, article in enumerate(squad.data):
        for p, paragraph in enumerate(article.paragraphs):
            context = paragraph.context
            split_context = request.split.tokens_and_offsets(context)
            for q, qa in enumerate(paragraph.qas):
                source = f"{request.path}: data[{a}].paragraphs[{p}].qas[{q}]"
                question = _make_question(request, source, context, split_context, qa, counts)
                if question is not None:
                    examples.append(question)
    counts["questions"] = len(examples)
    return ExampleSet(examples, dict(counts))


def read_jsonl(request: ReadRequest) -> ExampleSet:
    """Read questions from JSON lines {"context": …, "question": …, "answers": [{"text": …,
    "answer_start": …}]}, where `answer_start` is a character offset in the context."""
    examples: list[Example] = []
    counts: Counter[str] = Counter()
    for number, record in json_records(request):
        context = read_field(request, record, "context", str, number)
        qa = _SquadQuestion(
            str(record.get("id", number)),
            read_field(request, record, "question", str, number),
            read_field(request, record, "answers", list[_Answer], number)
            if request.labelled
            else [],
        )
        source = f"{request.path}:{number}"
        split_context = request.split.tokens_and_offsets(context)
        question = _make_question(request, source, context, split_context, qa, counts)
        if question is not None:
            examples.append(question)
    counts["questions"] = len(examples)
    return ExampleSet(examples, dict(counts))


def _make_question(
    request: ReadRequest,
    source: str,
    context: str,
    split_context: tuple[Tokens, tuple[Range, ...]],
    qa: _SquadQuestion,
    counts: Counter[str],
) -> Question | None:
    """Return a question. The answer to learn is the most common reference answer; of equally common
    ones, the first."""
    tokens, offsets = split_context
    question_tokens = request.split(qa.question)
    references = qa.answers
    if request.labelled and not references:
        counts["dropped_without_answer"] += 1
        return None
    counts["questions_without_text"] += not question_tokens
    if not request.labelled:
        return Question(source, qa.id, context, tokens, offsets, question_tokens, None, None)
    ranges = []
    for answer in references:
        start, stop = answer.answer_start, answer.answer_start + len(answer.text)
        if start < 0 or not answer.text.strip() or context[start:stop] != answer.text:
            raise ElmoError(
                f"{source}: the answer {answer.text!r} is not at character {start} of its context; "
                "correct answer_start"
            )
        ranges.append(tokens_covering(offsets, start, stop))
    answer_range = Counter(ranges).most_common(1)[0][0]
    answers = tuple(answer.text for answer in references)
    answer_start, answer_stop = offsets[answer_range[0]][0], offsets[answer_range[1] - 1][1]
    counts["answers_wider_in_tokens"] += context[answer_start:answer_stop] not in [
        text.strip() for text in answers
    ]
    return Question(source, qa.id, context, tokens, offsets, question_tokens, answers, answer_range)
