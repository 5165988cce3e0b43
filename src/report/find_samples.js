// Finds samples on a page of `tandem view`: by words, by how they ended, by reward; in the order of a number. What is found stands as copies above
// the files, so many at a time; without a wish the files stand there as they are.
function findSamples(form) {
  const kAtATime = 40;
  const kLeftOut = /\n\[\.\.\. [\d,]+ (bytes?|tokens?) are left out here \.\.\.\]\n/g;
  const found = document.querySelector(".found"), more = document.querySelector(".more");
  const files = document.querySelector(".samples"), output = form.querySelector("output");
  const wish = form.elements;
  let articles = null, matches = [], numShown = 0;

  // Reads all samples, when the first is looked for. One without a prompt of its own has that of the one above it.
  function readAll() {
    const all = [];
    for (const details of files.querySelectorAll("details[data-file]")) {
      let prompt = null;
      for (const article of details.querySelectorAll("article")) {
        prompt = article.querySelector(".prompt") ?? prompt;
        all.push({ article, prompt, file: details.dataset.file, words: null });
      }
    }
    return all;
  }

  // Prompt, response, label and failure: what the page itself says between them is not searched.
  function wordsOf(sample) {
    if (sample.words !== null) return sample.words;
    const texts = [sample.prompt, ...sample.article.querySelectorAll("pre:not(.prompt), .label, .warn")];
    sample.words = texts.map((part) => part?.textContent.replace(kLeftOut, "\n") ?? "").join("\n").toLowerCase();
    return sample.words;
  }

  function isWished(sample, words) {
    const data = sample.article.dataset;
    if (wish.file.value && sample.file !== wish.file.value) return false;
    if (wish.status.value === "failed" ? !data.failed : wish.status.value && data.status !== wish.status.value) return false;
    if (wish.least.value && !(Number(data.reward) >= Number(wish.least.value))) return false;
    if (wish.most.value && !(Number(data.reward) <= Number(wish.most.value))) return false;
    return words.every((word) => wordsOf(sample).includes(word));
  }

  // Samples without the number come last.
  function inOrder(samples, order) {
    if (!order) return samples;
    const sign = order.startsWith("-") ? -1 : 1, name = order.replace("-", "");
    const rank = (sample) => (name in sample.article.dataset ? sign * Number(sample.article.dataset[name]) : Infinity);
    return samples.sort((a, b) => (rank(a) === rank(b) ? 0 : rank(a) - rank(b)));
  }

  function copyOf(sample) {
    const copy = sample.article.cloneNode(true);
    const same = copy.querySelector(".same");
    if (same && sample.prompt) {
      same.textContent = "prompt";
      same.after(sample.prompt.cloneNode(true));
    }
    const place = document.createElement("p");
    place.className = "faint";
    place.textContent = form.querySelector(`option[value="${CSS.escape(sample.file)}"]`)?.textContent ?? sample.file;
    copy.prepend(place);
    return copy;
  }

  function showMore() {
    found.append(...matches.slice(numShown, numShown + kAtATime).map(copyOf));
    numShown = Math.min(matches.length, numShown + kAtATime);
    more.hidden = numShown === matches.length;
    const shown = numShown < matches.length ? `, the first ${numShown.toLocaleString("en")} are shown` : "";
    output.textContent = `${matches.length.toLocaleString("en")} of ${articles.length.toLocaleString("en")} samples of this page${shown}`;
  }

  function update() {
    found.replaceChildren();
    const words = wish.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isAsked = words.length > 0 || [wish.order, wish.file, wish.status, wish.least, wish.most].some((field) => field.value);
    files.hidden = isAsked;
    numShown = 0;
    more.hidden = true;
    output.textContent = "";
    if (!isAsked) return;
    articles ??= readAll();
    matches = inOrder(articles.filter((sample) => isWished(sample, words)), wish.order.value);
    showMore();
  }

  form.hidden = false;
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(update));  // the fields are empty after the event
  more.addEventListener("click", showMore);
}

document.querySelectorAll("form.finder").forEach(findSamples);
