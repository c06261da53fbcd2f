// Runs in each document before its own scripts. It passes the progress of the page to the browser
// package and collects the entries of the performance timeline, which observers do not lose.
(() => {
  if (window !== window.top || window.tabaneMeasures) return;
  const m = {fcp: 0, lcp: 0, cls: 0, bytes: 0, requests: 0, protocol: '', longTasks: 0};
  const observe = (type, each) => {
    new PerformanceObserver(list => list.getEntries().forEach(each)).observe({type, buffered: true});
  };
  observe('paint', e => { if (e.name === 'first-contentful-paint') m.fcp = e.startTime; });
  observe('largest-contentful-paint', e => { m.lcp = e.startTime; });
  observe('resource', e => { m.bytes += e.transferSize; m.requests++; });
  observe('longtask', e => { m.longTasks += e.duration; });
  // The largest session window of shifts: at most 5 s, with gaps of less than 1 s.
  let shift = 0, first = 0, last = -Infinity;
  observe('layout-shift', e => {
    if (e.hadRecentInput) return;
    if (e.startTime - last > 1000 || e.startTime - first > 5000) { shift = 0; first = e.startTime; }
    shift += e.value; last = e.startTime; m.cls = Math.max(m.cls, shift);
  });
  let input = 0;
  for (const type of ['mousedown', 'keydown', 'wheel']) {
    addEventListener(type, e => { input = e.timeStamp; }, {capture: true, passive: true});
  }
  let sent = '';
  const report = () => {
    const d = document.documentElement ? document.documentElement.dataset : {};
    const said = [d.step, d.chosen, d.fault].map(v => v === undefined ? '' : String(v).slice(0, 200));
    if (said.every(v => v === '') || said.join('\n') === sent) return;
    sent = said.join('\n');
    const [step, chosen, fault] = said;
    tabaneProgress(JSON.stringify({step, chosen, fault, at: performance.now(), input}));
  };
  new MutationObserver(report).observe(document, {attributes: true, subtree: true, attributeFilter: ['data-step', 'data-chosen', 'data-fault']});
  addEventListener('DOMContentLoaded', report);
  const pause = ms => new Promise(done => setTimeout(done, ms));
  window.tabaneMeasures = async patience => {
    const end = performance.now() + patience;
    const [nav] = performance.getEntriesByType('navigation');
    while ((!m.fcp || !m.lcp || !nav.loadEventEnd) && performance.now() < end) await pause(20);
    return {...m, ttfb: nav.responseStart, load: nav.loadEventEnd, contentLoaded: nav.domContentLoadedEventEnd,
      bytes: m.bytes + nav.transferSize, requests: m.requests + 1, protocol: nav.nextHopProtocol, origin: performance.timeOrigin};
  };
})();
