"""Sentences, words and languages, as the libraries that the published checks call tell them: NLTK's Punkt and Treebank
tokenizers with their English data, its list of stop words, its tagger, and langdetect. requirements-ifbench.txt has what
they need; nothing is downloaded."""

import importlib.util
import os
import string

from tandem_worker.protocol import MachineFault, one_line

# The package that carries NLTK's data on PyPI; nothing of its code runs.
DATA_PACKAGE, DATA_FOLDER = "llama_index", "core/_static/nltk_cache"
REMEDY = (
    "`tools/setup.sh ifbench` installs it, or, with a wheel of Tandem, `pip install 'tandem[ifbench]'` and "
    "`pip install --no-deps llama-index-core`"
)
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
MARKS = string.punctuation + " "  # what is stripped from the ends of words

emoji = langdetect = nltk = syllapy = word_tokenizer = None
stop_words = frozenset()


def load(asked_by):
    """Imports the packages and reads their data, before the first sample. MachineFault where one is missing; `asked_by`
    is the flag that needs them."""
    global emoji, langdetect, nltk, syllapy, word_tokenizer, stop_words
    try:
        import emoji
        import langdetect
        import nltk
        import syllapy
    except ImportError as error:
        raise MachineFault(f"{asked_by}: a package is missing ({one_line(error)}); {REMEDY}") from None
    nltk.data.path[:0] = data_folders()
    try:
        word_tokenizer = nltk.tokenize.RegexpTokenizer(r"\w+")
        stop_words = frozenset(nltk.corpus.stopwords.words("english"))
        sentences("One. Two.")
    except LookupError:
        raise MachineFault(
            f"{asked_by}: NLTK finds no data (punkt_tab, stopwords), which llama-index-core has; {REMEDY}"
        ) from None
    langdetect.DetectorFactory.seed = 0  # it draws at random; the same text is to have the same language each time
    language_of("Which language is this?")


def data_folders():
    spec = importlib.util.find_spec(DATA_PACKAGE)
    return [os.path.join(place, DATA_FOLDER) for place in (spec.submodule_search_locations if spec else ())]


def sentences(text):
    return nltk.sent_tokenize(text)


def tokens(text):
    """Words and punctuation marks as the Treebank has them: "don't." is "do", "n't", "."."""
    return nltk.word_tokenize(text)


def words(text):
    """Runs of letters, digits and underscores."""
    return word_tokenizer.tokenize(text)


def bare_words(text):
    """What white space separates, without ASCII punctuation."""
    return text.translate(NO_PUNCTUATION).split()


def language_of(text):
    """The code of the text's language; None where nothing in it tells."""
    try:
        return langdetect.detect(text)
    except langdetect.LangDetectException:
        return None


def languages():
    return sorted(langdetect.detector_factory._factory.get_lang_list())


# The tagger's data is in no package of PyPI.
TAGGER = "averaged_perceptron_tagger_eng"


def has_tagger():
    try:
        nltk.data.find(f"taggers/{TAGGER}")
    except LookupError:
        return False
    return True


def first_tag(words_and_marks):
    """The part of speech of the first word, as the Penn Treebank names it."""
    return nltk.pos_tag(words_and_marks)[0][1]
