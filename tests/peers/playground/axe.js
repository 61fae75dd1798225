// The rules of axe that the page violates, each with its elements.
const done = arguments[arguments.length - 1];
axe_.run().then(({ violations }) => {
  done(violations.map(({ id, nodes }) => [id, ...nodes.map(({ target }) => target.join(" "))]));
});
