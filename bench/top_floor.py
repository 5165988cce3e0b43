#!/usr/bin/env python3
"""Counts how the tree is laid out, at each of the commits that it is given, and prints Markdown tables.

    python3 bench/top_floor.py BEFORE AFTER           the tables of bench/results/top_floor.md
    python3 bench/top_floor.py --half COMMIT MODULE   the comment blocks of a module (or `all`) that are half sentences

A comment block is a run of comments on lines of their own. It is a half sentence if it begins with one of BEGINNINGS,
or if its first sentence has no finite verb at all, not even in a relative clause. Whether a word is a verb is looked up
in the lists below and guessed by its neighbours: single verdicts are wrong at times, but the same lists judge every
commit.
"""

import collections
import io
import re
import subprocess
import sys
import tarfile

BEGINNINGS = set("of that those beside behind whoever what which how".split())
AUXILIARIES = set("""is are was were has have had does do did can cannot could may might must will would shall should
isn't aren't need needn't""".split())
# The base forms of verbs whose third person is seldom a plural noun ...
VERBS = """abbreviate accept add adopt advance agree allocate allow alter announce appear append apply approximate
arrive ask assemble assert assign attend avoid be become begin behave believe belong borrow break bring build bypass
carry catch choose clip collect combine come compare compile compute configure confine connect consist consume
contain continue contribute convert create decay decide declare decode decompress decrypt define deliver demand deny
depend derive describe destroy detect deviate die differ disagree discard distribute divide drain drive earn edit
encode encrypt end enlarge ensure enter escape evaluate exceed exist expect explain express extend fall feed fill find
finish fit flush follow forbid foresee forget form gather generate get give go grow guard handle happen have hear
hide hold identify ignore imitate implement include initialise insert install interrupt invent join keep know lack last
lay learn leave lend let lie listen live look lose make match measure meet mend merge misbehave miss move multiply
name need normalise obey occupy occur offer outlive overflow overwrite parse pass pay pick poll prefer prepare
pretend prevent produce promise propagate propose prove provide publish pull put raise reach read realise reap receive
recognize redirect redraw refer refuse register release rely remain remember remove renumber render repair replace
represent reproduce request require rescale resemble reset restart restore resume retire retry reuse rewrite rotate run
satisfy save say scale search see seem select send serve share shift show shrink shuffle sit skip sleep
smooth sort spare speak speed spell spend split spread stand stay steal stick stop strip subtract succeed suit supervise
survive suspend swap switch synchronise take talk teach tell tend think throw touch train translate transpose treat trim
truncate try turn undo unmap use vary visit wait wake walk want warn wear weigh whiten win wish work write yield
print adjust admit centre contradict cover hash hold tell""".split()
# ... and of those that are nouns as well, which count as verbs only where a subject stands before them or an object
# behind them.
NOUN_VERBS = """access act aim answer back balance batch bias block book bound cache call cast cause change charge check
claim clear clone close code comment copy cost count cross cut damage date deal delay divide double draw drop dump edit
end engage escape estimate exchange exit export fail fault file fix flag flip fold force fork format gain grade grant
group grow guess halt hand help hint hook hope host hurt import index key kill label land launch lead lease level lift
light limit line link list load loan lock log loop lower map mark mask matter mention mind mirror mix model mount note
notice number object offset order pack pair part pause peak place plan play point pool post preempt press prompt push
queue race rank rate reason record repeat report rest result return review reward ring roll round sample scan schedule
score seal seed segment set shape shard sign signal size slice slot smile sound source space start state step store
stream stress style subject sum support surface tag test tie tile time top total trace trade trap trust tune type value
view wave weight wrap zero lead raise claim rule guide report start call ends reads""".split()
SUBJECTS = set("""it they he she we you i nobody everybody everyone everything nothing anybody one both each others all
these this there x who which that what then also never always only still already and but or not whoever else""".split())
OBJECTS = set("""the a an all each every one two three this these its it their his her what whether how no another both
only as that them itself nothing everything any exactly at up out so x""".split())


def third_person(verb):
    if re.search(r"(s|x|z|ch|sh|o)$", verb):
        return verb + "es"
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ies"
    return verb + "s"


THIRD = {third_person(verb) for verb in VERBS} | set("""opens owns frees completes separates means quotes spins precedes
returns warns points begins""".split())
NOUN_THIRD = {third_person(verb) for verb in NOUN_VERBS}
BASE = set(VERBS)
NOUN_BASE = set(NOUN_VERBS)
PAST = set("came went began became took gave found left knew saw said made ran read wrote got died failed".split())


def tree_of(commit, folders):
    """(path, text) of every text file of a commit under these folders."""
    archive = subprocess.run(["git", "archive", commit, *folders], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if not member.isfile():
                continue
            try:
                yield member.name, tar.extractfile(member).read().decode("utf-8")
            except UnicodeDecodeError:
                continue


def is_code(path):
    return path.endswith((".cc", ".h", ".cu", ".cuh"))


def blocks_of(text):
    """(line, text) of each comment block."""
    block, begin, continues_line = [], 0, False
    for number, line in enumerate(text.splitlines() + [""], start=1):
        match = re.match(r"\s*//+ ?(.*)", line)
        if match and not re.match(r"(clang-format|NOLINT)", match[1]):
            if not block:
                begin = number
            block.append(match[1])
            continue
        if block and not continues_line:
            yield begin, block
        block = []
        continues_line = "//" in line  # what follows goes on with a comment behind code


def first_sentence(lines):
    text = ""
    for line in lines:
        if text and (not line.strip() or line.startswith(("  ", "|", "-"))):  # a figure, a table or a list
            break
        text += " " + line.strip()
    text = re.sub(r"`[^`]*`|\"[^\"]*\"|\([^()]*\)", " X ", text)
    return re.split(r"(?<=[a-z0-9A-Z)\]])[.!?](?:\s|$)|;\s", text.strip(), maxsplit=1)[0]


def words_of(sentence):
    return re.findall(r"[A-Za-z_][\w:/.'()-]*|[,:]|\+?=", sentence)


def is_verb(words, i):
    word, before = words[i], words[i - 1] if i > 0 else ""
    after = words[i + 1] if i + 1 < len(words) else ""
    has_subject, has_object = before in SUBJECTS or before == ",", after in OBJECTS
    follows_plural = re.search(r"[^s]s$", before) is not None
    if word in AUXILIARIES or word in PAST or word in ("=", "+="):
        return True
    if word in THIRD:
        return True
    if word in NOUN_THIRD:
        return has_subject or has_object or (i == 0 and after not in ("of", "in", "to", "for", "and", ",", ":", ""))
    if word in BASE:
        return i == 0 or has_subject or has_object or follows_plural
    if word in NOUN_BASE:
        return (i == 0 and has_object) or has_subject or (follows_plural and has_object)
    return False


def begins_half(lines):
    return re.split(r"\W", first_sentence(lines), maxsplit=1)[0].lower() in BEGINNINGS


def has_verb(lines):
    words = [word.strip(".'").lower() for word in words_of(first_sentence(lines))]
    return len(words) < 2 or any(is_verb(words, i) for i in range(len(words)))


def is_half(lines):
    return begins_half(lines) or not has_verb(lines)


def module_of(path):
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "src" else None


def half_sentences(files):
    """Module -> [blocks, half ones, those that begin with one of BEGINNINGS]."""
    counts = collections.defaultdict(lambda: [0, 0, 0])
    for path, text in files:
        if module_of(path) is None or not is_code(path):
            continue
        for _, block in blocks_of(text):
            counts[module_of(path)][0] += 1
            counts[module_of(path)][1] += is_half(block)
            counts[module_of(path)][2] += begins_half(block)
    return counts


def num_lines(files):
    return sum(text.count("\n") for _, text in files)


def kinds_of_lines(files):
    """[lines of code, of comments alone, blank]."""
    counts = [0, 0, 0]
    for _, text in files:
        for line in text.splitlines():
            counts[2 if not line.strip() else 1 if line.strip().startswith("//") else 0] += 1
    return counts


def units(files):
    """A unit is a .cc, .cu, .h or .cuh file, or two or three of one name in one folder."""
    return len({path.rsplit(".", 1)[0] for path, _ in files})


def includes_of(code):
    """(module, other module) of each include line that crosses modules."""
    modules = {module_of(path) for path, _ in code} - {None}
    for path, text in code:
        for other in re.findall(r'^\s*#\s*include\s+"(\w+)/', text, re.MULTILINE):
            if module_of(path) and other in modules and other != module_of(path):
                yield module_of(path), other


def alternatives(code, name):
    """The kinds of a message: the types of `using NAME = std::variant<...>`."""
    for _, text in code:
        if match := re.search(rf"using {name} =\s*std::variant<([^>]*)>", text):
            return match[1].replace("\n", " ").split(",")
    return []


def naming(code, word):
    return sum(re.search(rf"\b{word}\b", text) is not None for _, text in code)


def classes_of(tests, base):
    """Classes of the tests that stand in for a contract."""
    return sum(len(re.findall(rf"\bclass \w+(?: final)? : public (?:\w+::)*{base}\b", text)) for _, text in tests)


DOUBLES = re.compile(r"/(torch_double/|faulty_disk|lossy_disk|failing_|fake_|hosted_|forwarding_|checking_|counting_|"
                     r"pretend_|simulated_|thread_(communicator|mesh|ranks))")


def print_table(columns, rows):
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) + " |")
    print()


def totals(commit):
    """Name -> number, of one commit."""
    src = list(tree_of(commit, ["src"]))
    code = [(path, text) for path, text in src if is_code(path)]
    tests = [(path, text) for path, text in tree_of(commit, ["tests"])
             if path.endswith((".cc", ".h", ".cu", ".py")) and "/golden/" not in path]
    doubles = [(path, text) for path, text in tests if DOUBLES.search(path) and "_test." not in path]
    lines = kinds_of_lines(code)
    pairs = collections.Counter(includes_of(code))
    half = half_sentences(code).values()
    begins, blocks = (sum(h[i] for h in half) for i in (2, 0))
    return {
        "src: lines of C++ and CUDA": num_lines(code),
        "- code": lines[0],
        "- comments on lines of their own": lines[1],
        "- blank": lines[2],
        "src: units": units(code),
        "src: modules": len({module_of(path) for path, _ in code} - {None}),
        "includes between modules": sum(pairs.values()),
        "pairs of modules, one of which includes the other": len(pairs),
        "kinds of messages between samplers and rank 0": len(alternatives(code, "(?:Worker)?Message")),
        "kinds of calls between the ranks of an engine": len(alternatives(code, "ReplicaCall")),
        "structs with one fields() for both directions": sum(
            len(re.findall(r"static void fields\(auto&", text)) for _, text in code),
        "files of src that name top_p": naming(code, "top_p"),
        "files of src that name min_p": naming(code, "min_p"),
        "comment blocks": blocks,
        "half sentences": sum(h[1] for h in half),
        "- that begin with " + ", ".join(sorted(BEGINNINGS)): begins,
        "pages of docs": sum(path.endswith(".md") for path, _ in tree_of(commit, ["docs"])),
        "lines of these pages": num_lines((p, t) for p, t in tree_of(commit, ["docs"]) if p.endswith(".md")),
        "tests: lines of C++ and Python": num_lines(tests),
        "- doubles, in files of their own": num_lines(doubles),
        "- classes that stand in for Ops": classes_of(tests, "(?:Ops|ForwardingOps|HostedOps)"),
        "- classes that stand in for Vmm": classes_of(tests, "Vmm"),
    }


def modules(commit):
    """Module -> [lines, units, includes of other modules, comment blocks, half ones]."""
    code = [(path, text) for path, text in tree_of(commit, ["src"]) if is_code(path)]
    includes = collections.Counter(module for module, _ in includes_of(code))
    half = half_sentences(code)
    result = {}
    for module in sorted({module_of(path) for path, _ in code} - {None}):
        own = [(path, text) for path, text in code if module_of(path) == module]
        result[module] = [num_lines(own), units(own), includes[module], *half[module][:2]]
    return result


def main(arguments):
    if arguments[:1] == ["--half"]:
        for path, text in tree_of(arguments[1], ["src"]):
            if is_code(path) and arguments[2] in ("all", module_of(path)):
                for line, block in blocks_of(text):
                    if is_half(block):
                        print(f"{path}:{line}: {first_sentence(block)}")
        return
    before, after = arguments
    old, new = totals(before), totals(after)
    print_table(["", before, after], [[name, old[name], new[name]] for name in new])
    old, new = modules(before), modules(after)
    rows = []
    for module in sorted(old.keys() | new.keys()):
        row = [f"`{module}`"]
        for counts in (old.get(module), new.get(module)):
            row += ["-"] * 4 if counts is None else \
                counts[:3] + [f"{counts[4]} of {counts[3]}: {100 * counts[4] / max(counts[3], 1):.1f} %"]
        rows.append(row)
    print_table(["module", "lines", "units", "includes", "half sentences", "lines", "units", "includes",
                 "half sentences"], rows)


if __name__ == "__main__":
    main(sys.argv[1:])
