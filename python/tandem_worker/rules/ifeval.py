"""The 25 instructions of IFEval (Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models";
google-research/instruction_following_eval), each as its published check decides.

Where a published check tries a regular expression at every place of a text, which takes minutes over a degenerate one,
the function here walks over the text once and decides the same; its comment has the expression."""

import json
import re

from tandem_worker.rules import english
from tandem_worker.rules.instructions import (
    Character, Count, Pattern, Patterns, Positive, Relation, Text, instruction)  # fmt: skip

NOT_SPACE = re.compile(r"\S")

# ------------------------------------------------------------------------------------------------------- keywords


@instruction("keywords:existence")
def existence(text, keywords: Patterns):
    return all(re.search(keyword, text, re.IGNORECASE) for keyword in keywords)


@instruction("keywords:frequency")
def frequency(text, keyword: Pattern, frequency: Count, relation: Relation):
    return relation(len(re.findall(keyword.strip(), text, re.IGNORECASE)), frequency)


@instruction("keywords:forbidden_words")
def forbidden_words(text, forbidden_words: Patterns):
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden_words)


@instruction("keywords:letter_frequency")
def letter_frequency(text, letter: Character, let_frequency: Count, let_relation: Relation):
    """The published check draws another letter at random where `letter` is none of a to z; IFEval has '#' and '!'."""
    return let_relation(text.lower().count(letter.lower()), let_frequency)


# ------------------------------------------------------------------------------------------------------- language


def Language(value):
    known = english.languages()
    if value not in known:
        raise ValueError(f"one of the languages that langdetect tells: {', '.join(known)}")
    return value


@instruction("language:response_language")
def response_language(text, language: Language):
    return english.language_of(text) in (language, None)


@instruction("change_case:english_capital")
def english_capital(text):
    return text.isupper() and english.language_of(text) in ("en", None)


@instruction("change_case:english_lowercase")
def english_lowercase(text):
    return text.islower() and english.language_of(text) in ("en", None)


@instruction("change_case:capital_word_frequency")
def capital_word_frequency(text, capital_frequency: Count, capital_relation: Relation):
    return capital_relation(sum(token.isupper() for token in english.tokens(text)), capital_frequency)


# ------------------------------------------------------------------------------------------------------- length


@instruction("length_constraints:number_sentences")
def number_sentences(text, num_sentences: Count, relation: Relation):
    return relation(len(english.sentences(text)), num_sentences)


@instruction("length_constraints:number_words")
def number_words(text, num_words: Count, relation: Relation):
    return relation(len(english.words(text)), num_words)


@instruction("length_constraints:number_paragraphs")
def number_paragraphs(text, num_paragraphs: Count):
    """Between paragraphs stands ***, and only the first and the last may be blank."""
    paragraphs = [bool(paragraph.strip()) for paragraph in re.split(r"\s?\*\*\*\s?", text)]
    return all(paragraphs[1:-1]) and sum(paragraphs) == num_paragraphs


@instruction(
    "length_constraints:nth_paragraph_first_word",
    requires=(lambda num_paragraphs, nth_paragraph, first_word: nth_paragraph <= num_paragraphs,
              "asks for a paragraph, nth_paragraph, beyond num_paragraphs"))  # fmt: skip
def nth_paragraph_first_word(text, num_paragraphs: Count, nth_paragraph: Positive, first_word: Text):
    """Blank paragraphs do not count, but the nth is counted with them."""
    paragraphs = text.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if nth_paragraph > count or not paragraphs[nth_paragraph - 1].strip():
        return False
    word = paragraphs[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    letters = re.split("[.,?!'\"]", word, maxsplit=1)[0]
    return count == num_paragraphs and "".join(map(str.lower, letters)) == first_word.lower()


# ------------------------------------------------------------------------------------------------------- content


@instruction("detectable_content:number_placeholders")
def number_placeholders(text, num_placeholders: Count):
    r"""Counts \[.*?\] in lines."""
    count = 0
    for line in text.split("\n"):
        begin = line.find("[")
        while begin >= 0 and (end := line.find("]", begin)) >= 0:
            count += 1
            begin = line.find("[", end)
    return count >= num_placeholders


@instruction("detectable_content:postscript")
def postscript(text, postscript_marker: Pattern):
    marker = postscript_marker.strip()
    pattern = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(marker, marker.lower())
    return re.search(pattern, text.lower(), re.MULTILINE) is not None


# ------------------------------------------------------------------------------------------------------- format


def number_of_lines(text, opens):
    """Counts lines that begin, after white space, blank lines too, with an item of a list. opens(text, i): where the
    content begins of an item whose mark may stand at i; None where there is no mark."""
    count, begin = 0, 0
    while first := NOT_SPACE.search(text, begin):
        content = opens(text, first.start())
        if content is not None:
            count += 1
        line_end = text.find("\n", first.start() if content is None else content)
        if line_end < 0:
            break
        begin = line_end + 1
    return count


def opens_star(text, at):
    """^\\s*\\*[^\\*].*$"""
    return at + 2 if text[at] == "*" and at + 1 < len(text) and text[at + 1] != "*" else None


def opens_dash(text, at):
    """^\\s*-.*$"""
    return at + 1 if text[at] == "-" else None


@instruction("detectable_format:number_bullet_lists")
def number_bullet_lists(text, num_bullets: Count):
    return number_of_lines(text, opens_star) + number_of_lines(text, opens_dash) == num_bullets


@instruction("detectable_format:constrained_response")
def constrained_response(text):
    return any(f"My answer is {answer}." in text for answer in ("yes", "no", "maybe"))


@instruction("detectable_format:number_highlighted_sections")
def number_highlighted_sections(text, num_highlights: Count):
    """A part in double stars is counted twice where both expressions find it."""
    single = sum(bool(part.strip("*").strip()) for part in re.findall(r"\*[^\n*]*\*", text))
    double = sum(bool(part[2:-2].strip()) for part in re.findall(r"\*\*[^\n*]*\*\*", text))
    return single + double >= num_highlights


@instruction("detectable_format:multiple_sections")
def multiple_sections(text, section_spliter: Pattern, num_sections: Count):
    return len(re.split(rf"\s?{section_spliter.strip()}\s?\d+\s?", text)) - 1 >= num_sections


@instruction("detectable_format:json_format")
def json_format(text):
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@instruction("detectable_format:title")
def title(text):
    """<<[^\\n]+>> that holds more than brackets."""
    for line in text.split("\n"):
        begin, end = line.find("<<"), line.rfind(">>")
        if 0 <= begin < end - 2 and line[begin : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


# ------------------------------------------------------------------------------------------------------- the rest


@instruction("combination:two_responses")
def two_responses(text):
    parts = [part.strip() for part in text.split("******")]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


@instruction("combination:repeat_prompt")
def repeat_prompt(text, prompt_to_repeat: Text):
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@instruction("startend:end_checker")
def end_checker(text, end_phrase: Text):
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@instruction("startend:quotation")
def quotation(text):
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@instruction("punctuation:no_comma")
def no_comma(text):
    return "," not in text
