'use strict';

// The bar of a study above a service: "done" can be pressed once the page has a choice.
(() => {
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const show = () => {
    const chosen = root.dataset.chosen;
    if (!chosen || chosen === $('study-chosen').value) {
      return;
    }
    $('study-chosen').value = chosen;
    $('study-done').disabled = false;
    $('study-hint').textContent = $('study-hint').dataset.chosen;
  };
  new MutationObserver(show).observe(root, { attributes: true, attributeFilter: ['data-chosen'] });
  show();
})();
