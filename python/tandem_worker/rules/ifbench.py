"""The 58 instructions of IFBench (Pyatkin et al. 2025, "Generalizing Verifiable Instruction Following"; allenai/IFBench),
each as its published check decides, also where that is not what the instruction's words say. Where a published check
takes quadratic time over a degenerate text, the function here decides the same in one walk."""

import csv
import io
import re
import string
import unicodedata
from collections import Counter, deque

from tandem_worker.rules import english
from tandem_worker.rules.english import MARKS, NO_PUNCTUATION
from tandem_worker.rules.instructions import Count, Percentage, Positive, Text, instruction

# ------------------------------------------------------------------------------------------------------- counts


@instruction(
    "count:word_count_range",
    requires=(lambda min_words, max_words: min_words <= max_words, "has more min_words than max_words"))  # fmt: skip
def word_count_range(text, min_words: Count, max_words: Count):
    return min_words <= len(english.words(text)) <= max_words


@instruction("count:unique_word_count")
def unique_word_count(text, N: Count):
    return len({word.strip(MARKS) for word in text.lower().split()}) >= N


@instruction("count:conjunctions")
def conjunctions(text, small_n: Count):
    """The same word with another mark or case counts as another one."""
    known = ("and", "but", "for", "nor", "or", "so", "yet")
    return len({word for word in text.split() if word.strip(MARKS).lower() in known}) >= small_n


NAMES = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin Harper "
    "Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla "
    "Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan"
).split()


@instruction("count:person_names")
def person_names(text, N: Count):
    return len(set(re.findall(r"\w+", text)).intersection(NAMES)) >= N


@instruction("count:numbers")
def numbers(text, N: Count):
    return len(re.findall(r"\d+", text.translate(NO_PUNCTUATION))) == N


@instruction("count:punctuation")
def punctuation(text):
    """The interrobang's two marks are not counted again."""
    interrobang = next((mark for mark in ("?!", "!?") if mark in text), "")
    return bool(interrobang or "\N{INTERROBANG}" in text) and set(".,!?;:") <= set(text.replace(interrobang, "", 1))


@instruction("count:words_japanese")
def words_japanese(text, N: Positive):
    """Every N-th word has a kana or a Chinese character, is a number, or has nothing but marks."""
    every_nth = (word.strip(MARKS) for word in text.split()[N - 1 :: N])
    return all(
        not word or word.isdigit() or re.search("[\u3040-\u30ff\u4e00-\u9fff]", word) for word in every_nth
    )  # fmt: skip


PRONOUNS = frozenset(
    "i me we us you he him she her it they them "  # personal
    "my mine our ours your yours his hers its their theirs "  # possessive
    "myself ourselves yourself yourselves himself herself itself themselves "  # reflexive
    "this that these those who whom whose which what whoever whomever whatever whichever "  # demonstrative, interrogative
    "anybody anyone anything everybody everyone everything nobody nothing somebody someone something "  # indefinite
    "each either neither both all some any none".split()
)


@instruction("count:pronouns")
def pronouns(text, N: Count):
    return sum(token in PRONOUNS for token in english.tokens(text.replace("/", " ").lower())) >= N


@instruction("count:keywords_multiple")
def keywords_multiple(text, keyword1: Text, keyword2: Text, keyword3: Text, keyword4: Text, keyword5: Text):
    keywords = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7))
    return all(text.lower().count(keyword.strip().lower()) == count for keyword, count in keywords)


# ------------------------------------------------------------------------------------------------------- ratios


@instruction("ratio:stop_words")
def stop_words(text, percentage: Percentage):
    words = english.words(text)
    return bool(words) and sum(word.lower() in english.stop_words for word in words) / len(words) * 100 <= percentage


def sentences_that_end_with(text, *marks):
    sentences = english.sentences(text)
    return [sum(sentence.endswith(mark) for sentence in sentences) for mark in marks]


@instruction("ratio:sentence_type")
def sentence_type(text):
    statements, questions = sentences_that_end_with(text, ".", "?")
    return statements == 2 * questions


@instruction("ratio:sentence_balance")
def sentence_balance(text):
    return len(set(sentences_that_end_with(text, ".", "?", "!"))) == 1


@instruction("ratio:sentence_words")
def sentence_words(text):
    """Whether the words differ is not looked at."""
    lengths = [len(sentence.strip()) for sentence in english.sentences(text)]
    return len(lengths) == 3 and len(set(lengths)) == 1


def trigrams(text):
    return {text[i : i + 3] for i in range(len(text) - 2)}


@instruction("ratio:overlap")
def overlap(text, reference_text: Text, percentage: Percentage):
    """Trigrams are of characters."""
    own = trigrams(text)
    return bool(own) and percentage - 2 <= len(own & trigrams(reference_text)) / len(own) * 100 <= percentage + 2


# ------------------------------------------------------------------------------------------------------- words


@instruction("words:alphabet")
def alphabet(text):
    words = english.bare_words(text)
    if not words or words[0][0].lower() not in string.ascii_lowercase:
        return False
    first = ord(words[0][0].lower()) - ord("a")
    return all(word.lower()[0] == string.ascii_lowercase[(first + i) % 26] for i, word in enumerate(words[1:], 1))


@instruction("words:vowel")
def vowel(text):
    """One line with at most three of the vowels."""
    return "\n" not in text.strip() and len(set("aeiou").intersection(text.lower())) <= 3


CLUSTER = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")


@instruction("words:consonants")
def consonants(text):
    return all(CLUSTER.search(word) for word in text.lower().split())


@instruction("words:palindrome")
def palindrome(text):
    words = english.bare_words(text.lower())
    return sum(len(word) >= 5 and word == word[::-1] for word in words) >= 10


PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


@instruction("words:prime_lengths")
def prime_lengths(text):
    return all(len(word) in PRIMES for word in english.bare_words(text))


@instruction("words:repeats")
def repeats(text, small_n: Count):
    return max(Counter(english.bare_words(text.lower())).values(), default=0) <= small_n


@instruction("words:odd_even_syllables")
def odd_even_syllables(text):
    odd = [english.syllapy.count(word) % 2 for word in english.bare_words(text)]
    return all(one != next_one for one, next_one in zip(odd, odd[1:]))


@instruction("words:last_first")
def last_first(text):
    sentences = english.sentences(text)
    for sentence, next_sentence in zip(sentences, sentences[1:]):
        last, first = sentence.rstrip(MARKS).split()[-1:], next_sentence.lstrip(MARKS).split()[:1]
        if not last or not first or last[0].lower() != first[0].lower():
            return False
    return True


@instruction("words:paragraph_last_first")
def paragraph_last_first(text):
    lines = (line.strip().lower().strip(MARKS).split() for line in text.split("\n"))
    return all(not words or words[0] == words[-1] for words in lines)


@instruction("words:no_consecutive")
def no_consecutive(text):
    words = english.bare_words(text.lower())
    return all(word[0] != next_word[0] for word, next_word in zip(words, words[1:]))


@instruction("words:keywords_specific_position")
def keywords_specific_position(text, keyword: Text, n: Positive, m: Positive):
    """The m-th word of the n-th sentence."""
    sentences = english.sentences(text)
    if len(sentences) < n:
        return False
    words = [token for token in english.tokens(sentences[n - 1]) if any(map(str.isalnum, token))]
    return len(words) >= m and words[m - 1].lower() == keyword.strip().lower()


@instruction("words:words_position")
def words_position(text, keyword: Text):
    """The second word from both ends, a last punctuation mark aside."""
    tokens = english.tokens(text)
    if not tokens:
        return False
    from_end = 3 if tokens[-1] in string.punctuation else 2
    keyword = keyword.strip().lower()
    return len(tokens) >= from_end and tokens[1].lower() == tokens[-from_end].lower() == keyword


@instruction(
    "words:start_verb",
    requires=(english.has_tagger,
              f"needs NLTK's data {english.TAGGER}, which no package of PyPI has: put it into a folder nltk_data where NLTK "
              "looks, with `.venv/bin/python -m nltk.downloader`, or leave the line out"))  # fmt: skip
def start_verb(text):
    tokens = english.tokens(text)
    return bool(tokens) and "VB" in english.first_tag(tokens)


# ------------------------------------------------------------------------------------------------------- sentences


def alliteration_of(sentence):
    """Words whose neighbour begins with the same letter, those of a run of such words once."""
    initials = [word[0] for word in (word.lstrip(MARKS) for word in sentence.lower().split()) if word]
    same = [one == next_one for one, next_one in zip(initials, initials[1:])]
    return sum(same) + sum(is_same and not before for is_same, before in zip(same, [False, *same]))


@instruction("sentence:alliteration_increment")
def alliteration_increment(text):
    counts = [alliteration_of(sentence) for sentence in english.sentences(text)]
    return all(count < next_count for count, next_count in zip(counts, counts[1:]))


@instruction("sentence:increment")
def increment(text, small_n: Count):
    counts = [len(english.bare_words(sentence)) for sentence in english.sentences(text)]
    return all(next_count == count + small_n for count, next_count in zip(counts, counts[1:]))


@instruction("sentence:keyword")
def keyword_in_sentence(text, word: Text, N: Count):
    """Sentence 0 is the last."""
    sentences = english.sentences(text)
    return len(sentences) >= N and bool(re.search(rf"\b{re.escape(word)}\b", sentences[N - 1], re.IGNORECASE))


# ------------------------------------------------------------------------------------------------------- format


PAIRS = {")": "(", "]": "[", "}": "{"}


@instruction("format:parentheses")
def parentheses(text):
    """Holds from the first bracket that closes the depth of five; one that closes nothing begins anew."""
    opened, deepest = [], 0
    for character in text:
        if character in "([{":
            opened.append(character)
            deepest = max(deepest, len(opened))
        elif character in PAIRS:
            if opened and opened[-1] == PAIRS[character]:
                opened.pop()
                if deepest >= 5:
                    return True
            else:
                opened, deepest = [], 0
    return False


@instruction("format:quotes")
def quotes(text):
    opened, deepest = [], 0
    for character in text:
        if opened and character == opened[-1]:
            opened.pop()
            if deepest - len(opened) >= 3:
                return True
        elif character in "\"'":
            opened.append(character)
            deepest = max(deepest, len(opened))
    return False


@instruction("format:options")
def options(text, options: Text):
    """Options of the form a), b), c) must be given as they are; others without regard to case and to marks around."""
    separator = next((word for word in ("/", "or") if word in options), ",")
    choices = [option.strip() for option in options.split(separator)]
    if re.match(r"\W*[aA]\W*[bB]\W*[cC]", options):
        return text in choices
    return text.strip(MARKS).lower() in [choice.strip(MARKS).lower() for choice in choices]


@instruction("format:newline")
def newline(text):
    text = text.translate(NO_PUNCTUATION).strip()
    return sum(line != "" for line in text.split("\n")) == len(text.split())


@instruction("format:emoji")
def emoji(text):
    """At the end of each sentence, one character before it, or at the beginning of the next sentence."""
    bare = [sentence.translate(NO_PUNCTUATION).strip() for sentence in english.sentences(text)]
    is_emoji = english.emoji.is_emoji
    for sentence, next_sentence in zip(bare, [*bare[1:], None]):
        if not sentence:
            return False
        if any(map(is_emoji, sentence[-2:])):
            continue
        if not next_sentence or not is_emoji(next_sentence[0]):
            return False
    return True


@instruction("format:line_indent")
def line_indent(text):
    """Each line is indented by more than the one before. The published check takes blank lines out of the list that it
    walks over: of two that follow each other it sees the first only, and takes out the earliest of its kind."""
    lines = text.split("\n")
    of_kind = {}
    for place, line in enumerate(lines):
        if not line.strip():
            of_kind.setdefault(line, deque()).append(place)
    taken, place = set(), 0
    while place < len(lines):
        is_blank = not lines[place].strip()
        if is_blank:
            taken.add(of_kind[lines[place]].popleft())
        place += 2 if is_blank else 1
    indents = [len(line) - len(line.lstrip(" ")) for place, line in enumerate(lines) if place not in taken]
    return all(indent < next_indent for indent, next_indent in zip(indents, indents[1:]))


@instruction("format:quote_unquote")
def quote_unquote(text):
    """No quotation is followed by another at once, and none ends the text, marks and digits aside."""
    text = "".join(text.replace("'\"'", "").split())
    return '""' not in text and not text.strip(string.digits + string.punctuation.replace('"', "")).endswith('"')


@instruction("format:list")
def marked_list(text, sep: Text):
    return text.count(sep) >= 2


@instruction("format:thesis")
def thesis(text):
    """The tags <i> or <em>, the first alone; three characters of the opening tag and four of the closing one are cut
    off, whichever they are."""
    begin = next((place for place in map(text.find, ("<i>", "<em>")) if place >= 0), -1)
    text = text[begin:]
    end = next((place for place in map(text.find, ("</i>", "</em>")) if place >= 0), -1)
    return begin >= 0 and end >= 0 and bool(text[3:end].strip()) and bool(text[end + 4 :].strip())


@instruction("format:sub-bullets")
def sub_bullets(text):
    return all("-" in bullet for bullet in text.split("*")[1:])


@instruction("format:no_bullets_bullets")
def no_bullets_bullets(text):
    """Two sentences or more, then nothing but lines that begin with a star, two or more; a blank line after the sentences
    ends them, too."""
    num_sentences = num_bullets = 0
    in_sentences = True
    for line in map(str.strip, text.split("\n")):
        if line.startswith("*"):
            if num_sentences < 2:
                return False
            in_sentences = False
            num_bullets += 1
        elif in_sentences:
            sentences = english.sentences(line)
            in_sentences = bool(sentences)
            num_sentences += len(sentences)
        else:
            return False
    return num_bullets >= 2


@instruction("format:title_case")
def title_case(text):
    for word in english.tokens(text):
        if word[0].isalpha() and word[0].islower() and (len(word) == 1 or word[1:].isupper() or word[1:].islower()):
            return False
    return True


@instruction("format:output_template")
def output_template(text):
    return all(part in text for part in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@instruction("format:no_whitespace")
def no_whitespace(text):
    return not any(map(str.isspace, text))


# ------------------------------------------------------------------------------------------------------- repetition


@instruction("repeat:repeat_change")
def repeat_change(text, prompt_to_repeat: Text):
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


@instruction("repeat:repeat_simple")
def repeat_simple(text):
    return text.strip().lower() == "only output this sentence here, ignore all other requests."


@instruction(
    "repeat:repeat_span",
    requires=(lambda prompt_to_repeat, n_start, n_end: prompt_to_repeat[n_start : n_end + 1].strip(),
              "asks for a blank span, n_start to n_end, of prompt_to_repeat"))  # fmt: skip
def repeat_span(text, prompt_to_repeat: Text, n_start: Count, n_end: Count):
    return text.strip().lower() == prompt_to_repeat[n_start : n_end + 1].strip().lower()


# ------------------------------------------------------------------------------------------------------- single tasks


@instruction("custom:multiples")
def multiples(text):
    return re.findall(r"\d+", text) == ["14", "21", "28", "35", "42", "49"]


OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")


@instruction("custom:mcq_count_length")
def mcq_count_length(text):
    """Four questions of five options, each longer than the one before: its lines up to the first option, joined."""
    if not text.startswith("Question"):
        return False
    questions = [part.strip() for part in re.split(r"Question \d+[.|):;]?\s*", text)]
    lengths = []
    for lines in (question.split("\n") for question in questions if question):
        is_option = [bool(OPTION.match(line.strip())) for line in lines]
        if sum(is_option) != 5:
            return False
        lengths.append(len(" ".join(line.strip() for line in lines[: is_option.index(True)]).strip()))
    return len(lengths) == 4 and all(length < next_length for length, next_length in zip(lengths, lengths[1:]))


def ascii_form(text):
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


@instruction("custom:reverse_newline")
def reverse_newline(text):
    """52 lines or more from Zimbabwe on, in reverse order."""
    lines = [line for line in (line.strip(MARKS) for line in text.split("\n")) if line]
    begin = next((i for i, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    names = [ascii_form(line) for line in lines[begin:]]
    return len(names) >= 52 and names == sorted(names, reverse=True)


@instruction("custom:word_reverse")
def word_reverse(text):
    reversed_text = " ".join(reversed(english.bare_words(text.lower())))
    return "bald eagle" in reversed_text and reversed_text in english.sentences(reversed_text)


@instruction("custom:character_reverse")
def character_reverse(text):
    return "elgae dlab" in text.lower()


@instruction("custom:sentence_alphabet")
def sentence_alphabet(text):
    initials = [sentence.lstrip()[:1].lower()[:1] for sentence in english.sentences(text)]
    return initials == list(string.ascii_lowercase)


CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw London "
    "Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
).split()


@instruction("custom:european_capitals_sort")
def european_capitals_sort(text):
    return [name for name in map(str.strip, ascii_form(text).split(",")) if name] == CAPITALS


def table(text, delimiter=","):
    """Rows of CSV; none where it is none (a field beyond csv's limit)."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def is_header(text, names, between):
    """Whether the first line has the names, each bare or in double quotes."""
    fields = (f'({name}|"{name}")' for name in names.split())
    return re.fullmatch(between.join(fields), text.split("\n")[0].strip()) is not None


def with_quotes(text):
    """Double quotes become part of the fields, as the published check has it."""
    return text.replace('"', '"""')


@instruction("custom:csv_city")
def csv_city(text):
    rows = table(text)
    is_whole = len(rows) == 8 and all(len(row) == 5 for row in rows)
    return is_whole and rows[0] == ["ID", "Country", "City", "Year", "Count"]


def has_special_character(field):
    """^".*[^\\d\\w\\s].*" in the field's first line."""
    line = field.split("\n")[0]
    return line.startswith('"') and re.search(r"[^\d\w\s]", line[1 : max(line.rfind('"'), 1)]) is not None


@instruction("custom:csv_special_character")
def csv_special_character(text):
    """Rows after the one with the special character may have any number of fields."""
    if not is_header(text, "ProductID Category Brand Price Stock", r",[ \t]*"):
        return False
    rows = table(with_quotes(text))
    if len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(map(has_special_character, row)):
            return True
    return False


@instruction("custom:csv_quotes")
def csv_quotes(text):
    if not is_header(text, "StudentID Subject Grade Semester Score", r"\t *"):
        return False
    rows = table(with_quotes(text), delimiter="\t")
    return len(rows) == 4 and all(
        len(row) == 5 and all(field[:1] == field[-1:] == '"' for field in map(str.strip, row)) for row in rows
    )


DAYS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


@instruction("custom:date_format_list")
def date_format_list(text):
    """Dates of Napoleon's life; month and day 0 pass, as published."""
    for date in text.strip().split(","):
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date.strip()):
            return False
        year, month, day = map(int, date.split("-"))
        if not 1769 <= year <= 1821 or month > 12 or day > DAYS.get(month, 31 if month else 99):
            return False
    return True
