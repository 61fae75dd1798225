// Notes how long each frame takes, from the one before, until it is asked; see frames.rs.
window.frames_ = [];
window.long_ = [];
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.long_.push(task.duration);
}).observe({ type: "longtask" });
let last = performance.now();
function note() {
  const now = performance.now();
  window.frames_.push(now - last);
  last = now;
  requestAnimationFrame(note);
}
requestAnimationFrame(note);
