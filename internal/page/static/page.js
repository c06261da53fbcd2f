'use strict';

// What both services share. For programs that drive the page, the root element has data-step, the number of
// interactions that are complete (0: the first view), data-chosen, the id of the chosen place or bought
// item, and data-fault, what failed.
const page = (() => {
  const state = document.documentElement.dataset;
  const $ = (id) => document.getElementById(id);
  let step = -1;
  let queue = Promise.resolve();

  // painted waits until an image can be painted.
  async function painted(img) {
    try {
      await img.decode();
    } catch {
      throw new Error('an image did not load: ' + img.getAttribute('src'));
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
      throw new Error('the server responds ' + response.status + ' to ' + path);
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
        const text = await work();
        await frame();
        $('status').textContent = text;
        step++;
        state.step = step;
      } catch (e) {
        state.fault = e.message;
        $('status').textContent = 'That did not work: ' + e.message;
        $('status').classList.add('fault');
      }
      $('main').removeAttribute('aria-busy');
    });
  }

  // element returns a new element with text.
  function element(name, text, attributes = {}) {
    const e = document.createElement(name);
    e.textContent = text;
    for (const [key, value] of Object.entries(attributes)) {
      e.setAttribute(key, value);
    }
    return e;
  }

  // photos shows images with a description in the detail, and waits for them.
  function photos(sources, width, height, text) {
    const images = sources.map((_, i) => element('img', '', { width, height, alt: text + ' ' + (i + 1) }));
    $('photos').replaceChildren(...images);
    return Promise.all(images.map((img, i) => image(img, sources[i])));
  }

  // facts shows pairs of a term and its description in the detail.
  function facts(pairs) {
    $('facts').replaceChildren(...pairs.flatMap(([term, text]) => [element('dt', term), element('dd', text)]));
  }

  // open shows the detail and moves the focus to its title.
  function open(title) {
    $('detail-title').textContent = title;
    $('detail').hidden = false;
    $('detail-title').focus();
  }

  const rating = (tenths) => (tenths / 10).toFixed(1) + ' of 5';

  return { $, state, image, json, whole, interact, element, photos, facts, open, rating };
})();
