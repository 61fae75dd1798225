// How many times the first chart is drawn in three seconds.
const done = arguments[arguments.length - 1];
const first = document.querySelector("#lanes canvas").getContext("2d");
const clear = first.clearRect;
let drawn = 0;
first.clearRect = (...area) => {
  drawn += 1;
  clear.apply(first, area);
};
setTimeout(() => {
  first.clearRect = clear;
  done(drawn);
}, 3000);
