'use strict';

(() => {
  const { $, state, text, named, image, json, whole, interact, element, photos, facts, open, rating } = page;
  const columns = 4;
  const rows = 3;
  const size = 256;
  // percent is a position in pixels of a map of full width, which may be scaled down.
  const percent = (pixels, tiles) => (100 * pixels) / (tiles * size) + '%';
  const maxZoom = 3;
  let view = { zoom: 1, x: columns / 2, y: rows >> 1 };
  let place = null;

  const clamp = (v, last) => Math.min(Math.max(v, 0), last);
  const move = (v, x, y) => ({ zoom: v.zoom, x: clamp(v.x + x, columns * 2 ** v.zoom - columns), y: clamp(v.y + y, rows * 2 ** v.zoom - rows) });
  const zoomIn = (v) => (v.zoom === maxZoom ? v : move({ zoom: v.zoom + 1, x: 2 * v.x, y: 2 * v.y }, columns / 2, rows >> 1));
  const zoomOut = (v) => (v.zoom === 0 ? v : move({ zoom: v.zoom - 1, x: v.x >> 1, y: v.y >> 1 }, -(columns >> 2), -(rows >> 2)));

  // show loads a view. The previous one stays under the new tiles until all of them have come.
  async function show(next) {
    const layer = element('div', '', { class: 'layer' });
    const previous = [...$('map').children];
    $('map').append(layer);
    const tiles = [];
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++) {
        const tile = element('img', '', { class: 'tile', alt: '', draggable: 'false' });
        layer.append(tile);
        tiles.push(image(tile, `tile/${next.zoom}/${next.x + x}/${next.y + y}.png`));
      }
    }
    try {
      await Promise.all([...tiles, json(`view/${next.zoom}/${next.x}/${next.y}.json`).then((d) => list(layer, d))]);
    } catch (e) {
      layer.remove();
      throw e;
    }
    previous.forEach((old) => old.remove());
    view = next;
    return summary();
  }

  const summary = () => text('view', { n: $('places').children.length, zoom: view.zoom });

  const button = (p) => element('button', text('placeIn', { place: named(p.name, p.kind), district: text(p.district) }), { type: 'button', 'data-place': p.id });

  // mark shows the places of a view on the map.
  function mark(layer, data) {
    const at = (e, p) => {
      e.style.left = percent(p.x, columns);
      e.style.top = percent(p.y, rows);
      return e;
    };
    layer.append(...data.districts.map((d) => at(element('span', text(d.name), { class: 'label' }), d)));
    // The list has the same places for keyboards and screen readers.
    layer.append(...data.places.map((p) => {
      const marker = at(button(p), p);
      marker.className = 'marker';
      marker.tabIndex = -1;
      marker.title = named(p.name, p.kind);
      marker.setAttribute('aria-hidden', 'true');
      marker.replaceChildren(element('img', '', { class: `icon ${p.kind}`, src: 'icons.png', width: 16, height: 16, alt: '' }));
      return marker;
    }));
  }

  // list shows the places of a view, on the map and as a list.
  function list(layer, data) {
    mark(layer, data);
    const item = (child) => {
      const li = element('li', '');
      li.append(child);
      return li;
    };
    $('places').replaceChildren(...data.places.map((p) => item(button(p))));
    const byID = new Map(data.places.map((p) => [p.id, p]));
    const pictures = [];
    $('favorites').replaceChildren(...data.favorites.map((id) => {
      const b = button(byID.get(id));
      const img = element('img', '', { width: 160, height: 120, alt: '' });
      b.prepend(img);
      pictures.push(image(img, `thumb/${id}.png`));
      return item(b);
    }));
    return Promise.all(pictures);
  }

  // detail opens a place.
  async function detail(id) {
    const p = await json(`place/${id}.json`);
    place = p;
    const name = named(p.name, p.kind);
    facts([['kind', text(p.kind)], ['district', text(p.district)], ['features', p.features.map((f) => text(f)).join(text('comma'))], ['rating', rating(p.rating)]]);
    $('choose').hidden = false;
    open(name);
    await photos([...Array(p.photos).keys()].map((i) => `photo/${id}/${i}.png`), 160, 120, 'photo', name);
    return text('isOpen', { name });
  }

  // choose ends a search.
  async function choose() {
    const c = await json(`chosen/${place.id}.json`);
    const name = named(c.name, c.kind);
    $('choose').hidden = true;
    open(text('wayTo', { name }));
    await photos([...Array(c.routes).keys()].map((i) => `route/${c.id}/${i}.png`), 160, 120, 'turn', name);
    state.chosen = c.id;
    return text('chosen', { name });
  }

  const actions = {
    'zoom-in': zoomIn,
    'zoom-out': zoomOut,
    west: (v) => move(v, -2, 0),
    east: (v) => move(v, 2, 0),
    north: (v) => move(v, 0, -1),
    south: (v) => move(v, 0, 1),
  };
  const keys = { '+': 'zoom-in', '-': 'zoom-out', ArrowLeft: 'west', ArrowRight: 'east', ArrowUp: 'north', ArrowDown: 'south' };
  const act = (name) => interact(() => show(actions[name](view)));
  for (const name of Object.keys(actions)) {
    $(name).addEventListener('click', () => act(name));
  }
  $('main').addEventListener('click', (e) => {
    const chosen = e.target.closest('[data-place]');
    if (chosen) {
      interact(() => detail(chosen.dataset.place));
    }
  });
  $('choose').addEventListener('click', () => interact(choose));
  $('map').addEventListener('keydown', (e) => {
    const name = keys[e.key];
    if (name && !e.ctrlKey && !e.altKey && !e.metaKey) {
      e.preventDefault();
      act(name);
    }
  });

  // Dragging moves the map by whole tiles.
  let from = null;
  $('map').addEventListener('pointerdown', (e) => {
    from = e.target.closest('.marker') ? null : { x: e.clientX, y: e.clientY };
  });
  $('map').addEventListener('pointerup', (e) => {
    if (!from) {
      return;
    }
    const side = $('map').clientWidth / columns;
    const x = Math.round((from.x - e.clientX) / side);
    const y = Math.round((from.y - e.clientY) / side);
    from = null;
    if (x || y) {
      interact(() => show(move(view, x, y)));
    }
  });

  // The document has the first view, except for what has a position on the map.
  mark($('map').firstElementChild, JSON.parse($('view').textContent));
  interact(async () => {
    await whole();
    return summary();
  });
})();
