"""Makes cases.jsonl: responses, and what the published checks of IFEval and IFBench say of them.

    python make.py FOLDER >cases.jsonl

FOLDER: a checkout of allenai/IFBench. README.md has the commit, the packages and where their data was."""

import json
import random
import string
import sys

sys.path.insert(0, sys.argv[1])
import evaluation_lib  # noqa: E402
import langdetect  # noqa: E402
from ifbench import instructions_registry  # noqa: E402

CHECKS = instructions_registry.INSTRUCTION_DICT
RNG = random.Random(45)
CANDIDATES, MOST_OF_A_KIND = 300, 7

REFERENCE = "The tide comes in twice a day, and the boats rise with it."
REQUEST = "Tell me how bread is baked, please."
STORY = "Boats leave early. The tide decides, and who argues with it? Dr. Hale, at No. 4, keeps a log!"
QUESTIONS = "\n".join(
    f"Question {i}: {'Which painter ' + 'also ' * i + 'worked here?'}\nA) one\nB) two\nC) three\nD) four\nE) five"
    for i in range(1, 5)
)
CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, Amsterdam, "
    "Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, Chisinau, Bern, Ljubljana, "
    "Zagreb"
)
ALPHABET = " ".join(f"{letter}ne goes on." for letter in string.ascii_uppercase)
KEYWORDS = " ".join(["kelp", "reef " * 2, "gull " * 3, "sand " * 5, "wave " * 7])
PALINDROMES = "level radar civic refer rotor kayak madam tenet stats solos"

# name: [(arguments, texts that may follow them, before they are changed)]
CASES = {
    "keywords:existence": [({"keywords": ["tide", "boats?"]}, ["The Tide lifts each boat.", "tide, boats"])],
    "keywords:frequency": [
        ({"keyword": " tide", "frequency": 2, "relation": "at least"}, ["Tide and tide and tides."]),
        ({"keyword": "tide", "frequency": 2, "relation": "less than"}, ["One tide, one tide.", "none"]),
    ],
    "keywords:forbidden_words": [({"forbidden_words": ["tide", "sea"]}, ["Seas and tides.", "the sea", "a tide"])],
    "keywords:letter_frequency": [
        ({"letter": "E", "let_frequency": 3, "let_relation": "at least"}, ["Three trees", "eel"]),
        ({"letter": "t", "let_frequency": 2, "let_relation": "less than"}, ["A Tall oak", "Tut"]),
    ],
    "language:response_language": [
        ({"language": "de"}, ["Das Wetter am Meer ist heute schön und die Boote fahren hinaus.", "Le bateau est parti ce matin avec la marée haute.", "12 34", "***"]),
        ({"language": "fr"}, ["Le bateau est parti ce matin avec la marée haute, sans nous.", "The boats left this morning."]),
    ],
    "length_constraints:number_sentences": [
        ({"num_sentences": 4, "relation": "less than"}, [STORY]),
        ({"num_sentences": 3, "relation": "at least"}, [STORY, "e.g. Mr. Fox. Yes."]),
    ],
    "length_constraints:number_paragraphs": [({"num_paragraphs": 3}, ["a\n***\nb\n***\nc", "***a*** ***c***", "a *** b***c***"])],
    "length_constraints:number_words": [
        ({"num_words": 12, "relation": "at least"}, [STORY, "a_b c-d 'e' 1.5 f"]),
        ({"num_words": 12, "relation": "less than"}, [STORY, "one two"]),
    ],
    "length_constraints:nth_paragraph_first_word": [
        ({"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "Tides"}, ["One.\n\n'Tides' turn.\n\nThree.", "One\n\ntides, two\n\n\n\nThree", "a\n\n\"tides!\"\n\nc"]),
    ],
    "detectable_content:number_placeholders": [({"num_placeholders": 2}, ["[name] at [place]", "[a [b] c]", "[a\nb] []"])],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, ["Bye.\nP.S. Write.", "p. s. x", "ps."]),
        ({"postscript_marker": "P.P.S"}, ["Bye.\n p.p.s Write.", "P.P.S", "P.S."]),
        ({"postscript_marker": "NB:"}, ["Bye.\nnb: bring tea", "NB"]),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, ["* a\n* b", "- a\n\n\n  - b", "*\n\nx\n- y", "** a\n* b\n-", "*"]),
    ],
    "detectable_format:constrained_response": [({}, ["My answer is yes.", "My answer is maybe. Or so", "my answer is no."])],
    "detectable_format:number_highlighted_sections": [({"num_highlights": 3}, ["*a* **b** *c*", "**a** **b**", "* * *a*", "***a***"])],
    "detectable_format:multiple_sections": [({"section_spliter": " Part", "num_sections": 2}, ["Part 1\na\nPart 2\nb", "Part1 Part 2", "part 1 Part 3"])],
    "detectable_format:json_format": [({}, ['{"a": [1, 2.5]}', '```json\n{"a": null}\n```', "```\n[1]\n```", "12", "{'a': 1}"])],
    "detectable_format:title": [({}, ["<<Tides>>\nx", "<< >>", "<<<a>>", "<<a>\n>", "<<>>>", "x <<b>> <<"])],
    "combination:two_responses": [({}, ["one\n******\ntwo", "******one******two******", "one ****** one", "a******b******c"])],
    "combination:repeat_prompt": [({"prompt_to_repeat": REQUEST}, [f"{REQUEST} With flour.", f"  {REQUEST.upper()}", "no"])],
    "startend:end_checker": [({"end_phrase": "That is all. "}, ["Bread. That is all.", 'Bread "that is all."', "That is all, folks"])],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 2, "capital_relation": "at least"}, ["NO and YES, I said", "A B c"]),
        ({"capital_frequency": 2, "capital_relation": "less than"}, ["NO and yes", "N.A.S.A. IS"]),
    ],
    "change_case:english_capital": [({}, ["THE BOATS LEFT THE HARBOUR THIS MORNING.", "DIE BOOTE SIND HEUTE FRÜH AUSGELAUFEN.", "1 2"])],
    "change_case:english_lowercase": [({}, ["the boats left the harbour this morning.", "die boote sind heute früh ausgelaufen.", "1 2"])],
    "punctuation:no_comma": [({}, ["No commas here.", "One, two"])],
    "startend:quotation": [({}, ['"All of it."', '"', '""', "'a'", 'a"'])],
    "count:word_count_range": [({"min_words": 8.0, "max_words": 14.0}, [STORY, REFERENCE])],
    "count:unique_word_count": [({"N": 9.0}, [STORY, "a a A! b c d e f g -"])],
    "ratio:stop_words": [({"percentage": 40.0}, [STORY, "kelp reef gull sand and", "...", "the and of"])],
    "ratio:sentence_type": [({}, ["It is. It was. Is it?", STORY, "None", "A. B? C? D. E. F."])],
    "ratio:sentence_balance": [({}, ["It is. Is it? It is!", STORY, "None"])],
    "count:conjunctions": [({"small_n": 3.0}, ["Salt and bread, but no wine or tea; so it was, yet...", "and And and,"])],
    "count:person_names": [({"N": 3.0}, ["Emma met Noah and Leo's Mia.", "Emmas, emma, Ava Ava_1", "Ella Jacob Zoe"])],
    "ratio:overlap": [({"reference_text": REFERENCE, "percentage": 60.0}, [REFERENCE, REFERENCE[:30] + " Nobody minds.", REFERENCE[10:40], "ab"])],
    "count:numbers": [({"N": 3.0}, ["1, 22 and 3.", "1.5 2,5 3-4", "a1b2c3", "٣ 4 5"])],
    "words:alphabet": [({}, ["All boats come down early.", "Yes, Zoe asks, Ben", "1 2", "...", "É f"])],
    "words:vowel": [({}, ["A tall man sang.", "One\nTwo", "Education", "rhythm"])],
    "words:consonants": [({}, ["Bright stars shine", "The boats", "strong east"])],
    "sentence:alliteration_increment": [({}, ["He ran. Two tall trees. Big boats bob by.", STORY, "Go go. No no no."])],
    "words:palindrome": [({}, [PALINDROMES, PALINDROMES.upper() + "!", "Noon " + PALINDROMES])],
    "count:punctuation": [({}, ["Well: a, b; c. d?! e?", "a, b; c: d! e?! f.", "‽ . , ! ? ; :", "What!? Yes! No, no; so: it. ?"])],
    "format:parentheses": [({}, ["(a [b {c (d [e] ) } ] )", "((((a))))", "(((((a)]))))", "[{(((x)))}]"])],
    "format:quotes": [({}, ["\"a 'b \"c\" d' e\"", "'a'", "\"it's\"", "\"'\"'"])],
    "words:prime_lengths": [({}, ["It was an apple, too", "a bc", "---", "Boats lie"])],
    "format:options": [
        ({"options": "red/green/blue"}, ["Red!", "green", "dark blue", "red/green"]),
        ({"options": "I will or I will not"}, ["i will", "I WILL NOT.", "maybe"]),
        ({"options": "a), b), c)"}, ["a)", "b", "c) ", "A)"]),
    ],
    "format:newline": [({}, ["One\ntwo\n\nthree", "One two\nthree", "a -\nb", "a\n \nb"])],
    "format:emoji": [({}, ["Hello there. 🌊 Boats! ⛵", "One 🌊. Two ⛵!", "One. Two.", "Fine 👩‍🚀", "Flag 🇫🇷.", "..."])],
    "ratio:sentence_words": [({}, ["One is it. Two is me. Six is us.", STORY])],
    "count:words_japanese": [({"N": 2.0}, ["one 二 three 四", "one ひ, three 4", "one two", "one -- カ"])],
    "words:start_verb": [({}, ["Go to the harbour.", "Running is fun.", "The boat left.", "...", "Is it late?"])],
    "words:repeats": [({"small_n": 2.0}, ["the tide, The boat and a boat", "no no no", "-- -- --"])],
    "sentence:keyword": [({"word": "tide", "N": 2.0}, [STORY, "One. Two tide!", "Tide. Tides.", "One.\nThe TIDE. Three."])],
    "count:pronouns": [({"N": 4.0}, ["She/he gave it to them; who's that?", STORY, "I'll do it myself"])],
    "words:odd_even_syllables": [({}, ["The water is lively", "boats leaving today", "big little table", "go 12"])],
    "words:last_first": [({}, ["We saw boats. Boats left. Left is right.", STORY, "One. -- One."])],
    "words:paragraph_last_first": [({}, ["Boats are boats.\n\n'Tides' make tides!", "One two", "---\nA a"])],
    "sentence:increment": [({"small_n": 1.0}, ["One. One two. One two three.", STORY, "Go. Go now. We go now."])],
    "words:no_consecutive": [({}, ["The boat left early", "Big boats", "a, b. c"])],
    "format:line_indent": [({}, ["a\n b\n  c", "a\n\n b\n\n\n  c\nd", "\n\na\n \n  \n\n b", "a\n\tb", " \n \na\n b"])],
    "format:quote_unquote": [({}, ['"Ebb" means out. "Flow" in', '"a" "b" c', 'x "a"', "the '\"' mark", '"a" 1.'])],
    "format:list": [({"sep": "!?"}, ["!? one\n!? two", "!?!?", "!? one"])],
    "format:thesis": [({}, ["<i>Tides matter.</i> They do.", "<em>x</em> y", "<i></i>", "<em></i> a", "<i>a</em>", "</i> <i>a</i> b"])],
    "format:sub-bullets": [({}, ["* a\n - b\n* c\n - d", "* a\n* b\n- c", "none"])],
    "format:no_bullets_bullets": [({}, ["It is. It was.\n* a\n* b", "One.\nTwo.\n\n* a\n* b", "It is.\n* a\n* b", "A. B.\n* a\n* b\nc"])],
    "custom:multiples": [({}, ["14, 21, 28, 35, 42, 49", "14,21,28,35,42,49.", "7 14 21 28 35 42 49"])],
    "custom:mcq_count_length": [({}, [QUESTIONS, QUESTIONS.replace(")", "."), "x " + QUESTIONS, "Question"])],
    "custom:reverse_newline": [({}, ["\n".join(["Here:", "Zimbabwe"] + [f"{c}a{d}o" for c in "YXWTSRNMLKJHG" for d in "zyxw"])])],
    "custom:word_reverse": [({}, ["eagle bald the is it", "Eagle bald.", "bald eagle", "US the of symbol the is eagle bald The"])],
    "custom:character_reverse": [({}, ["elgae dlab eht si tI", "ELGAE DLAB", "bald eagle"])],
    "custom:sentence_alphabet": [({}, [ALPHABET, ALPHABET.lower()])],
    "custom:european_capitals_sort": [({}, [CAPITALS, CAPITALS.replace("Reykjavik", "Reykjavík").replace("Chisinau", "Chișinău"), CAPITALS + ","])],
    "custom:csv_city": [({}, ["ID,Country,City,Year,Count" + "\n1,Peru,Lima,1990,3" * 7, 'ID,Country,City,Year,Count' + '\n1,"A, B",Lima,1990,3' * 7])],
    "custom:csv_special_character": [
        ({}, ["ProductID,Category,Brand,Price,Stock" + '\n1,"a&b",x,2.5,3' * 14, 'ProductID, "Category",Brand,\tPrice,Stock' + "\n1,a,x,2,3" * 13 + '\n1,"é!",x,2,3']),
    ],
    "custom:csv_quotes": [
        ({}, ['"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"' + '\n"1"\t"a"\t"B"\t"I"\t"9"' * 3, '"StudentID"\t "Subject"\t"Grade"\t"Semester"\t"Score"' + '\n"1"\t"a"\t"B"\t""\t"9"' * 3]),
    ],
    "custom:date_format_list": [({}, ["1796-04-12, 1805-12-02,1815-06-18", "1800-00-99", "1769-02-29", "1800-04-31", "1822-01-01"])],
    "count:keywords_multiple": [
        ({"keyword1": "kelp ", "keyword2": "reef", "keyword3": "gull", "keyword4": "Sand", "keyword5": "wave"}, [KEYWORDS, KEYWORDS + " waves"]),
    ],
    "words:keywords_specific_position": [({"keyword": "tide", "n": 2, "m": 3}, ["One. The high, tide. x", "One. (The) 'high' Tide!", STORY])],
    "words:words_position": [({"keyword": "tide"}, ["The tide is the tide now.", "A tide, tide x", "tide tide", "It's tide tide a"])],
    "repeat:repeat_change": [({"prompt_to_repeat": REQUEST}, [REQUEST.replace("Tell", "Show"), REQUEST, "Show  " + REQUEST[5:]])],
    "repeat:repeat_simple": [({}, ["Only output this sentence here, ignore all other requests.", "only output"])],
    "repeat:repeat_span": [({"prompt_to_repeat": REQUEST, "n_start": 5, "n_end": 15}, [REQUEST[5:16], REQUEST[5:15]])],
    "format:title_case": [({}, ["The Boat Left", "The boat", "A McDonald Xy iPhone", "1st Place", "a B"])],
    "format:output_template": [({}, ["My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"])],
    "format:no_whitespace": [({}, ["one,two", "one two", "one\u00a0two"])],
}  # fmt: skip
PIECES = [" ", "\n", "\n\n", ".", "?", "!", ",", "*", "**", "-", '"', "'", "(", "[", "]", "}", "<", ">", "1", "A", "é", "\t",
          "...", "the ", " Tide", "\n* ", "\n- ", "* * *", "\r\n", "🌊", "二", "\u2028", "\u200f", "\x00", "ﬁ", "İ", "ß", "²"]  # fmt: skip


def changed(text):
    """A text that differs from another by a few pieces, words or lines."""
    for _ in range(RNG.choice((0, 1, 1, 1, 2, 3))):
        at, kind = RNG.randrange(len(text) + 1), RNG.randrange(6)
        if kind < 2:
            text = text[:at] + RNG.choice(PIECES) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at + RNG.randrange(1, 4) :]
        elif kind == 3:
            words = text.split(" ")
            RNG.shuffle(words)
            text = " ".join(words)
        elif kind == 4:
            lines = text.split("\n")
            lines.insert(RNG.randrange(len(lines) + 1), RNG.choice(lines))
            text = "\n".join(lines)
        else:
            text = RNG.choice((text.upper(), text.lower(), text.title(), text + " " + text, text[::-1], text.strip()))
    return text


def says(name, arguments, text):
    """None where the check raises something, or where its draws decide."""
    answers = set()
    for seed in range(5):
        langdetect.DetectorFactory.seed = seed
        check = CHECKS[name](name)
        check.build_description(**arguments)
        try:
            answers.add(bool(check.check_following(text)))
        except Exception:
            return None
    return answers.pop() if len(answers) == 1 else None


def of_one_instruction():
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
                    yield {"names": [name], "kwargs": [arguments], "response": text, **judged([name], [dict(arguments)], text)}


def judged(names, kwargs, text):
    """What the published evaluation says of each instruction, strictly and loosely."""
    langdetect.DetectorFactory.seed = 0
    line = evaluation_lib.InputExample(key=0, instruction_id_list=names, prompt="", kwargs=kwargs)
    strict = evaluation_lib.test_instruction_following_strict(line, {"": text})
    try:
        loose = evaluation_lib.test_instruction_following_loose(line, {"": text}).follow_instruction_list
    except Exception:
        loose = None  # a check raised something over one of the forms
    return {"strict": strict.follow_instruction_list, "loose": loose}


def of_several():
    """Lines that have several instructions, as the data sets do."""
    easy = ["punctuation:no_comma", "startend:quotation", "detectable_format:title", "count:numbers", "format:list",
            "keywords:existence", "detectable_format:number_bullet_lists", "length_constraints:number_words"]  # fmt: skip
    for _ in range(40):
        names = RNG.sample(easy, RNG.randrange(2, 4))
        kwargs = [CASES[name][0][0] for name in names]
        text = "\n".join(changed(RNG.choice(CASES[name][0][1])) for name in names)
        yield {"names": names, "kwargs": kwargs, "response": text, **judged(names, [dict(k) for k in kwargs], text)}


for case in (*of_one_instruction(), *of_several()):
    print(json.dumps(case))
