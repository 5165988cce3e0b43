"""Makes ifrlvr.jsonl: responses, and what the published checks of IF-RLVR say of them.

    python make_ifrlvr.py FOLDER >ifrlvr.jsonl

FOLDER: a checkout of allenai/open-instruct. README.md has the commit, the packages and where their data was."""

import json
import random
import sys
import types

# Only its folder IFEvalG is imported, not what the package itself imports.
package = types.ModuleType("open_instruct")
package.__path__ = [sys.argv[1] + "/open_instruct"]
sys.modules["open_instruct"] = package
from open_instruct.IFEvalG import instructions_registry, instructions_util  # noqa: E402

instructions_util.nltk.word_tokenize("Ends here where NLTK has no data: says() would leave out all that need it.")

RNG = random.Random(29)
CANDIDATES, MOST_OF_A_KIND = 400, 7
REQUEST = "Tell me how bread is baked, please."
STORY = "Boats leave early. The tide decides, and who argues with it? Dr. Hale, at No. 4, keeps a log!"
PIECES = [" ", "\n", "\n\n", ".", "!", "?", '."', '?"', "…", "...", "-", "***", " *** ", "******", "[", "]", "<<", ">>", "a",
          "B", "tide", "Tide", "Mr. ", "e.g. ", "U.S. ", "U.S. It is", "Co. ", " Inc. We go", "3.5", "www.a.com", "Ph.D. ", "noon",
          "É", "”", ".”", "\t", "*", "1", ",", "İ"]  # fmt: skip

# name: [(arguments, texts that are near to following it)]
CASES = {
    "copy:copy": [({"prompt_to_repeat": REQUEST}, [REQUEST, REQUEST.upper() + " ", REQUEST[:-1]])],
    "copy:copying_simple": [({"prompt_to_repeat": REQUEST}, [REQUEST, f"\n{REQUEST.lower()}", f"Sure: {REQUEST}"])],
    "copy:copying_multiple": [
        ({"prompt_to_repeat": REQUEST, "N": 2}, [f"{REQUEST}******{REQUEST}", f"{REQUEST}\n******\n{REQUEST.upper()}", REQUEST]),
        ({"prompt_to_repeat": "Go", "N": 3}, ["Go ****** go ******GO", "Go***Go***Go"]),
    ],
    "new:copy_span_idx": [({"prompt_to_repeat": REQUEST, "n_start": 5, "n_end": 14}, [REQUEST[5:14], REQUEST[5:15], " ME HOW BR"])],
    "copy:repeat_phrase": [
        ({"phrase": "The big tide rises", "small_n": 2},
         ["The low tide rises, and The big sea rises", "The big tide rises The big tide rises", "The low tide rises\nThe big sea rises",
          "The rises The big sea rises The low tide rises"]),
        ({"phrase": " Is it so? ", "small_n": 1}, ["Is this so?", "Is it so?", "Is that s", "Is  so Is that so"]),
    ],
    "keywords:word_once": [({"keyword": "tide"}, ["The tide.", "Tide and tides", "None", "betide"])],
    "keywords:word_count_different_numbers": [
        ({"keyword": "tide ", "frequency": 2, "relation": "at least"}, ["tide TIDE", "tide", "tides tide tide"]),
        ({"keyword": "b.at", "frequency": 2, "relation": "less than"}, ["boat beat", "boat", ""]),
    ],
    "count:count_increment_word": [({"keyword1": "tide", "keyword2": "boat"}, ["tide boat Boats", "boat tide", "tide tide boat boat"])],
    "keywords:exclude_word_harder": [({"keyword": "tide"}, ["The tide rises", "tide, tide", "A Tide comes", "the tide", "the tide "])],
    "keywords:no_adjacent_consecutive": [({}, ["All tides rise", "a big cat", "zebras are", "İ a", "One"])],
    "keywords:palindrome": [({}, ["at noon", "Noon", "a boat", "two boats", "level!"])],
    "keywords:keyword_specific_position": [
        ({"keyword": "tide", "n": 2, "m": 2}, ["Boats leave. The tide decides.", "Boats leave. The Tide.", STORY, "One. A tide"]),
        ({"keyword": ["is", "are"], "n": 1, "m": 3}, ["Here it is. No.", "Mr. A is", "it, is"]),
    ],
    "keywords:start_end": [({}, ["Tides and tides", "tide in the tide.", "Sea to sea", "one"])],
    "first_word:first_word_sent": [
        ({"first_word": "Boats"}, ["Boats leave. Boats come!", "Boats leave. They come.", "boats, leave", "Boats.. Boats"]),
        ({"first_word": ["It"]}, ["It is. it was?", "It's."]),
    ],
    "first_word:first_word_answer": [({"first_word": "boats"}, ["Boats leave.", "  boats", "Boats, ho", "The boats"])],
    "last_word:last_word_sent": [
        ({"last_word": "tide"}, ["We see the tide. It is the (Tide)!", "See the tide. Now.", "tide", 'the tide." tide?']),
        ({"last_word": ["sea"]}, ["To sea. At sea!", "sea-"]),
    ],
    "last_word:last_word_answer": [({"last_word": "tide"}, ["See the tide.", "the 'Tide'!", "tides", "tide now"])],
    "paragraphs:paragraphs": [({}, ["a\n***\nb", "***a***b***", "a *** *** b", "a", "a***b***c", "*** ***"])],
    "paragraphs:paragraphs2": [({}, ["a\n\nb", "\n\na\n\nb\n\n", "a\n\n\n\nb", "a", "a\nb", "a\n\nb\n\nc", "\n\n\n\na\n\nb"])],
    "detectable_format:sentence_hyphens": [({}, ["It is.-It was.", "It is. - It was.", "Yes", "one-two", "A.-B?-C!", "\n\nIt is.-It was.\n"])],
    "detectable_format:square_brackets": [({}, ["[All] [tides]", "[All tides]", "[a]b", "[]"])],
    "detectable_format:bigram_wrapping": [({}, ["<<I am>> <<at sea>>", "<<I am>> here", "<<I>> <<am>>", "one"])],
    "punctuation:punctuation_dot": [({}, ["No dots!", "Dots.", "3.5"])],
    "punctuation:punctuation_exclamation": [({}, ["None.", "Ho!", "a!b"])],
    "count:lowercase_counting": [({"N": 2}, ["THE tide IS in", "a b c", "iPhone x1 É éa"])],
    "letters:letter_counting": [
        ({"N": 5, "relation": "at least"}, ["a b c d e", "abcd1é", "abcd"]),
        ({"N": 5, "relation": "less than"}, ["abcd é", "abcde"]),
    ],
    "letters:letter_counting2": [
        ({"letter": "T", "let_frequency": 2, "let_relation": "at least"}, ["The tide", "A tide", "ttt"]),
        ({"letter": "e", "let_frequency": 1, "let_relation": "less than"}, ["A boat", "The E"]),
    ],
    "count:counting_composition": [
        ({"n_sent": 2, "n_words": 3}, ["It is. It was.\n***\nWe go. We row.***I see. I am.", "It is.***It is.***It is.", "a***b***c"]),
        ({"n_sent": 1, "n_words": 2}, ["Go!***Row.***Sit?", "Go! *** Row. *** Sit? ***", "***Go!***Row.***Sit?"]),
    ],
    "count:count_unique": [({}, ["All tides rise.", "tide Tide", "tide tide", "one, two, three"])],
}  # fmt: skip


def changed(text):
    for _ in range(RNG.randrange(1, 4)):
        at = RNG.randrange(len(text) + 1)
        kind = RNG.randrange(4)
        if kind == 0:
            text = text[:at] + RNG.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + RNG.randrange(1, 5) :]
        elif kind == 2:
            words = text.split(" ")
            words.insert(RNG.randrange(len(words) + 1), RNG.choice(words))
            text = " ".join(words)
        else:
            text = RNG.choice((text.upper(), text.lower(), text.title(), f"{text} {text}", text.strip()))
    return text


def says(name, arguments, text):
    """Returns what a check says of the text without the white space at its ends, as open-instruct gives it. None where it raises
    something."""
    check = instructions_registry.INSTRUCTION_DICT[name](name)
    check.build_description(**arguments)
    try:
        return bool(check.check_following(text.strip()))
    except Exception:
        return None


for name, rows in CASES.items():
    for arguments, texts in rows:
        left = {True: MOST_OF_A_KIND, False: MOST_OF_A_KIND}
        seen = set()
        for i in range(CANDIDATES):
            text = texts[i] if i < len(texts) else changed(RNG.choice(texts))
            if not text.strip() or text in seen:
                continue
            seen.add(text)
            answer = says(name, arguments, text)
            if answer is not None and left[answer] > 0:
                left[answer] -= 1
                print(json.dumps({"names": [name], "kwargs": [arguments], "response": text, "strict": [answer]}))
