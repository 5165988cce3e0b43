"""The 29 instructions that IF-RLVR trains on beside IFEval's (Pyatkin et al. 2025, "Generalizing Verifiable Instruction
Following"; open_instruct/IFEvalG in allenai/open-instruct), each as its published check decides, also where that is not
what the instruction's words say. open-instruct gives its checks a response without the white space at its ends; three
checks would decide otherwise with it, and take it away themselves."""

import re

from tandem_worker.rules import english
from tandem_worker.rules.instructions import (
    Character, Count, Pattern, Positive, Relation, Text, Word, instruction)  # fmt: skip

NOT_WORD = re.compile(r"[^\w\s]")
DIVIDER = re.compile(r"\s?\*\*\*\s?")

# Sentences end at . ? and !, but a dot that one of these expressions finds ends none: it is hidden until the text is cut.
# They apply one after the other. STOP ends a sentence without a mark.
STOP, HIDDEN = "<stop>", "<prd>"
BEGINNINGS = r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\s|She\s|It\s|They\s|Their\s|Our\s|We\s|But\s|However\s|That\s|This\s|Wherever)"
LETTER, FIRM = "([A-Za-z])", "(Inc|Ltd|Jr|Sr|Co)"
HIDING = [
    (re.compile(expression), replacement)
    for expression, replacement in (
        (r"(Mr|St|Mrs|Ms|Dr)\.", rf"\1{HIDDEN}"),
        (r"\.(com|net|org|io|gov|edu|me)", rf"{HIDDEN}\1"),
        (r"([0-9])\.([0-9])", rf"\1{HIDDEN}\2"),
        (r"\.{2,}", lambda dots: HIDDEN * len(dots[0]) + STOP),
        (r"Ph\.D\.", f"Ph{HIDDEN}D{HIDDEN}"),
        (rf"\s{LETTER}\. ", rf" \1{HIDDEN} "),
        (rf"([A-Z]\.[A-Z]\.(?:[A-Z]\.)?) {BEGINNINGS}", rf"\1{STOP} \2"),
        (rf"{LETTER}\.{LETTER}\.{LETTER}\.", rf"\1{HIDDEN}\2{HIDDEN}\3{HIDDEN}"),
        (rf"{LETTER}\.{LETTER}\.", rf"\1{HIDDEN}\2{HIDDEN}"),
        (rf" {FIRM}\. {BEGINNINGS}", rf" \1{STOP} \2"),
        (rf" {FIRM}\.", rf" \1{HIDDEN}"),
        (rf" {LETTER}\.", rf" \1{HIDDEN}"),
    )
]


def sentences(text):
    """As IFEvalG tells them, which is not as NLTK does."""
    text = f" {text}  ".replace("\n", " ")
    for expression, replacement in HIDING:
        text = expression.sub(replacement, text)
    for quoted, moved in ((".”", "”."), ('."', '".'), ('!"', '"!'), ('?"', '"?')):  # the mark goes behind the quote
        text = text.replace(quoted, moved)
    for mark in ".?!":
        text = text.replace(mark, mark + STOP)
    parts = [part.strip() for part in text.replace(HIDDEN, ".").split(STOP)]
    return parts if parts[-1] else parts[:-1]


def two_parts(parts):
    """Whether there are two parts, not counting a blank one at either end; a blank one in between is never right."""
    blank = [i for i, part in enumerate(parts) if not part.strip()]
    return set(blank) <= {0, len(parts) - 1} and len(parts) - len(blank) == 2


def Phrase(value):
    words = Text(value).split()
    Pattern(words[0]), Pattern(words[-1])
    return value.strip()


def occurrences(keyword, text):
    return len(re.findall(keyword.strip(), text, re.IGNORECASE))


def is_copy(text, original):
    return text.strip().lower() == original.strip().lower()


# ------------------------------------------------------------------------------------------------------- copying


@instruction("copy:copy")
def copy(text, prompt_to_repeat: Text):
    return is_copy(text, prompt_to_repeat)


@instruction("copy:copying_simple")
def copying_simple(text, prompt_to_repeat: Text):
    return is_copy(text, prompt_to_repeat)


@instruction("copy:copying_multiple")
def copying_multiple(text, prompt_to_repeat: Text, N: Positive):
    parts = text.split("******")
    return len(parts) == N and all(is_copy(part, prompt_to_repeat) for part in parts)


@instruction(
    "new:copy_span_idx",
    requires=(lambda prompt_to_repeat, n_start, n_end: prompt_to_repeat[n_start:n_end].strip(), "has a blank span"))  # fmt: skip
def copy_span_idx(text, prompt_to_repeat: Text, n_start: Positive, n_end: Positive):
    """Without the character at n_end. The published code draws another place where one of them is 0."""
    return is_copy(text, prompt_to_repeat[n_start:n_end])


@instruction("copy:repeat_phrase")
def repeat_phrase(text, phrase: Phrase, small_n: Positive):
    """`FIRST .*? LAST` by the phrase's first and last word, which are regular expressions, as published. Where no last
    word follows a first one on its line, none follows the line's other first ones."""
    words = phrase.split()
    begin, end = re.compile(words[0] + " "), re.compile(" " + words[-1])
    found = []
    for line in text.split("\n"):
        at = 0
        while (first := begin.search(line, at)) and (last := end.search(line, first.end())):
            found.append(line[first.start() : last.end()].split())
            at = max(last.end(), at + 1)
    differences = [sum(a != b for a, b in zip(one, words)) for one in found]
    return len(found) == small_n and all(len(one) == len(words) for one in found) and set(differences) == {1}


# ------------------------------------------------------------------------------------------------------- keywords


@instruction("keywords:word_once")
def word_once(text, keyword: Pattern):
    return occurrences(keyword, text) == 1


@instruction("keywords:word_count_different_numbers")
def word_count_different_numbers(text, keyword: Pattern, frequency: Count, relation: Relation):
    return relation(occurrences(keyword, text), frequency)


@instruction("count:count_increment_word")
def count_increment_word(text, keyword1: Pattern, keyword2: Pattern):
    return occurrences(keyword1, text) == 1 and occurrences(keyword2, text) == 2


@instruction("keywords:exclude_word_harder")
def exclude_word_harder(text, keyword: Text):
    """Between two spaces alone: at the ends of a line and beside a mark it may stand."""
    return f" {keyword.strip()} " not in text.strip()


@instruction("keywords:no_adjacent_consecutive")
def no_adjacent_consecutive(text):
    letters = [word[0].lower() for word in text.split()]
    if len(letters) > 1 and any(len(letter) != 1 for letter in letters):
        return False
    return all(ord(after) - ord(before) != 1 for before, after in zip(letters, letters[1:]))


@instruction("keywords:palindrome")
def palindrome(text):
    """One letter or mark is one, too."""
    return any(word == word[::-1] for word in text.split())


@instruction("keywords:keyword_specific_position")
def keyword_specific_position(text, keyword: Word, n: Positive, m: Positive):
    """Words and marks as the Treebank has them; the case counts."""
    known = sentences(text)
    words = english.tokens(known[n - 1]) if n <= len(known) else []
    return m <= len(words) and words[m - 1] == keyword


@instruction("keywords:start_end")
def start_end(text):
    words = english.tokens(text)
    return len(words) > 1 and words[0].lower() == words[-1].lower()


# ------------------------------------------------------------------------------------------------------- first and last words


@instruction("first_word:first_word_sent")
def first_word_sent(text, first_word: Word):
    return all(part and part.split()[0].lower() == first_word.lower() for part in sentences(text))


@instruction("first_word:first_word_answer")
def first_word_answer(text, first_word: Word):
    return text.split()[:1] != [] and text.split()[0].lower() == first_word.lower()


@instruction("last_word:last_word_sent")
def last_word_sent(text, last_word: Word):
    return all(part and bare(part.split()[-1]) == last_word.lower() for part in sentences(text))


@instruction("last_word:last_word_answer")
def last_word_answer(text, last_word: Word):
    return text.split()[-1:] != [] and bare(text.split()[-1]) == last_word.lower()


def bare(word):
    return NOT_WORD.sub("", word).lower()


# ------------------------------------------------------------------------------------------------------- form


@instruction("paragraphs:paragraphs")
def paragraphs(text):
    return two_parts(DIVIDER.split(text))


@instruction("paragraphs:paragraphs2")
def paragraphs2(text):
    return two_parts(text.strip().split("\n\n"))


@instruction("detectable_format:sentence_hyphens")
def sentence_hyphens(text):
    """Each piece between hyphens is a sentence, as long as there are sentences: what stands behind is not looked at."""
    text = text.strip()
    pieces, wanted = text.split("-"), sentences(text.replace("-", " "))
    return all(piece.strip() == piece == sentence for piece, sentence in zip(pieces, wanted))


@instruction("detectable_format:square_brackets")
def square_brackets(text):
    return all(word.startswith("[") and word.endswith("]") for word in text.split())


@instruction("detectable_format:bigram_wrapping")
def bigram_wrapping(text):
    """An odd last word may stand alone."""
    words = text.split()
    return all(a.startswith("<<") and b.endswith(">>") for a, b in zip(words[::2], words[1::2]))


@instruction("punctuation:punctuation_dot")
def punctuation_dot(text):
    return "." not in text


@instruction("punctuation:punctuation_exclamation")
def punctuation_exclamation(text):
    return "!" not in text


# ------------------------------------------------------------------------------------------------------- counts


@instruction("count:lowercase_counting")
def lowercase_counting(text, N: Positive):
    """How many there are in all, not how often each appears."""
    return len(re.findall(r"\b[a-z]+\b", text)) <= N


@instruction("letters:letter_counting")
def letter_counting(text, N: Positive, relation: Relation):
    return relation(sum(character.isascii() and character.isalpha() for character in text), N)


@instruction("letters:letter_counting2")
def letter_counting2(text, letter: Character, let_frequency: Count, let_relation: Relation):
    """The published check draws another letter at random where `letter` is none of a to z."""
    return let_relation(text.lower().count(letter.lower()), let_frequency)


@instruction("count:counting_composition")
def counting_composition(text, n_sent: Positive, n_words: Positive):
    """Marks count as words, as the Treebank has them."""
    parts = [sentences(part) for part in DIVIDER.split(text)]
    return len(parts) == 3 and all(
        len(part) == n_sent and all(len(english.tokens(sentence)) == n_words for sentence in part) for part in parts
    )


@instruction("count:count_unique")
def count_unique(text):
    """Marks must not come twice either."""
    words = english.tokens(text)
    return len(words) == len(set(words))
