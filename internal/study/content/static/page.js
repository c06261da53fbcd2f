'use strict';

// What both services share. For programs that drive the page, the root element has data-step, the number of
// interactions that are complete (0: the first view), data-chosen, the id of the chosen place or bought
// item, and data-fault, what failed.
const page = (() => {
  const state = document.documentElement.dataset;
  const $ = (id) => document.getElementById(id);
  const texts = JSON.parse($('texts').textContent);
  let step = -1;
  let queue = Promise.resolve();

  // text returns a text of the page's language with values in it.
  const text = (key, values = {}) => texts[key].replace(/{(\w+)}/g, (_, name) => values[name]);

  // named returns the name of a place or an item of a kind.
  const named = (name, kind) => text('name', { name, kind: text(kind) });

  // painted waits until an image can be painted.
  async function painted(img) {
    try {
      await img.decode();
    } catch {
      throw new Error(text('notLoaded', { path: img.getAttribute('src') }));
    }
  }

  // image sets the source of an image and waits for it.
  function image(img, src) {
    img.src = src;
    return painted(img);
  }

  // json returns what a path has.
  async function json(path) {
    const response = await fetch(path);
    if (!response.ok) {
      throw new Error(text('refused', { status: response.status, path }));
    }
    return response.json();
  }

  // whole waits for the images that the document itself has.
  function whole() {
    return Promise.all([...document.images].map(painted));
  }

  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));

  // interact runs an interaction after those before it, and counts it once everything is painted. work
  // returns the text for the status line.
  function interact(work) {
    queue = queue.then(async () => {
      $('main').setAttribute('aria-busy', 'true');
      delete state.fault;
      $('status').classList.remove('fault');
      try {
        const result = await work();
        await frame();
        $('status').textContent = result;
        step++;
        state.step = step;
      } catch (e) {
        state.fault = e.message;
        $('status').textContent = text('failed', { reason: e.message });
        $('status').classList.add('fault');
      }
      $('main').removeAttribute('aria-busy');
    });
  }

  // element returns a new element with text.
  function element(name, content, attributes = {}) {
    const e = document.createElement(name);
    e.textContent = content;
    for (const [key, value] of Object.entries(attributes)) {
      e.setAttribute(key, value);
    }
    return e;
  }

  // photos shows images of a name in the detail, with a text that describes them, and waits for them.
  function photos(sources, width, height, description, name) {
    const images = sources.map((_, i) => element('img', '', { width, height, alt: text(description, { name, n: i + 1 }) }));
    $('photos').replaceChildren(...images);
    return Promise.all(images.map((img, i) => image(img, sources[i])));
  }

  // facts shows pairs of a term and its description in the detail.
  function facts(pairs) {
    $('facts').replaceChildren(...pairs.flatMap(([term, value]) => [element('dt', text(term)), element('dd', value)]));
  }

  // open shows the detail and moves the focus to its title.
  function open(title) {
    $('detail-title').textContent = title;
    $('detail').hidden = false;
    $('detail-title').focus();
  }

  const rating = (tenths) => text('ofFive', { n: (tenths / 10).toFixed(1) });

  return { $, state, text, named, image, json, whole, interact, element, photos, facts, open, rating };
})();
