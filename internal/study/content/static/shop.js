'use strict';

(() => {
  const { $, state, text, named, image, json, whole, interact, element, photos, facts, open, rating } = page;
  const perPage = 10;
  let item = null;
  let from = 0;

  const yen = (n) => text('yen', { n: n.toLocaleString(document.documentElement.lang) });

  // cards returns list items of the shop's items and waits for their pictures.
  function cards(list, folder, size) {
    const pictures = [];
    const items = list.map((i) => {
      const img = element('img', '', { width: size, height: size, alt: '' });
      const b = element('button', text('itemFor', { item: named(i.name, i.category), color: text(i.color), price: yen(i.price) }), { type: 'button', 'data-item': i.id });
      b.prepend(img);
      b.addEventListener('click', () => interact(() => detail(i.id)));
      pictures.push(image(img, `${folder}/${i.id}.png`));
      const li = element('li', '');
      li.append(b);
      return li;
    });
    return { items, loaded: Promise.all(pictures) };
  }

  // list shows results and recommendations. Further results are added.
  function list(data, further) {
    const results = cards(data.items, 'thumb', 160);
    if (further) {
      $('results').append(...results.items);
      results.items[0].firstElementChild.focus(); // the button that had the focus may be hidden
    } else {
      $('results').replaceChildren(...results.items);
    }
    return Promise.all([results.loaded, recommend(data)]);
  }

  function recommend(data) {
    const { items, loaded } = cards(data.recommended, 'small', 96);
    $('recommended').replaceChildren(...items);
    return loaded;
  }

  async function home() {
    const data = await json('home.json');
    await list(data, false);
    return text('items', { n: data.total });
  }

  // search loads a page of results.
  async function search(next) {
    const form = new FormData($('form'));
    const query = new URLSearchParams({ q: form.get('q').trim(), color: form.get('color') });
    if (form.get('price')) {
      query.set('price', form.get('price'));
    }
    if (next > 0) {
      query.set('from', next);
    }
    const data = await json('search.json?' + query);
    from = next;
    const total = text('results', { n: data.total });
    $('results-title').textContent = total;
    $('more').hidden = from + perPage >= data.total;
    await list(data, next > 0);
    return total;
  }

  // detail opens an item.
  async function detail(id) {
    const i = await json(`item/${id}.json`);
    item = i;
    const name = named(i.name, i.category);
    facts([['category', text(i.category)], ['color', text(i.color)], ['price', yen(i.price)], ['rating', rating(i.rating)]]);
    $('add').hidden = false;
    open(name);
    const sources = [...Array(i.photos).keys()].map((n) => `photo/${id}/${n}.png`);
    await Promise.all([photos(sources, 320, 320, 'photo', name), recommend(i)]);
    return text('isOpen', { name });
  }

  // add puts the open item into the cart.
  async function add() {
    const i = await json(`cart/${item.id}.json`);
    if (!state.chosen) {
      $('cart').replaceChildren();
    }
    const name = named(i.name, i.category);
    $('cart').append(element('li', text('inCartFor', { item: name, price: yen(i.price) })));
    await recommend(i);
    state.chosen = i.id;
    return text('inCart', { name });
  }

  const start = () => interact(() => search(0));
  $('form').addEventListener('submit', (e) => {
    e.preventDefault();
    start();
  });
  for (const radio of $('form').querySelectorAll('[type="radio"]')) {
    radio.addEventListener('change', start);
  }
  for (const category of $('categories').querySelectorAll('button')) {
    category.addEventListener('click', () => {
      $('search').value = text(category.dataset.category);
      start();
    });
  }
  $('more').addEventListener('click', () => interact(() => search(from + perPage)));
  $('add').addEventListener('click', () => interact(add));

  const own = whole();
  interact(async () => {
    const [text] = await Promise.all([home(), own]);
    return text;
  });
})();
