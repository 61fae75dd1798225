// Notes how long each frame takes, in microseconds from the one before; see frames.rs.
window.frames_ = [];
window.long_ = [];
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.long_.push(Math.round(1000 * task.duration));
}).observe({ type: "longtask" });
let last = performance.now();
function note() {
  const now = performance.now();
  window.frames_.push(Math.round(1000 * (now - last)));
  last = now;
  requestAnimationFrame(note);
}
requestAnimationFrame(note);
