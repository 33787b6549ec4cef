// One slide at a time, scaled to the window; keys, buttons and the address choose it. On paper, all of them.
const [WIDTH, HEIGHT] = [1280, 720];
// Text and pictures shrink until a slide holds them, to this share of their size at most.
const SMALLEST = 0.6;
const deck = document.querySelector(".deck");
const slides = [...deck.querySelectorAll("section > section")];
const counter = document.querySelector("#counter");
let current = 0;

function fit(slide) {
  const overflows = () => slide.scrollHeight > HEIGHT || slide.scrollWidth > WIDTH;
  for (let size = 1; (slide.style.fontSize = `${size}em`) && overflows() && size > SMALLEST;) size -= 0.05;
}

function scale() {
  const factor = Math.min(innerWidth / WIDTH, innerHeight / HEIGHT);
  const [left, top] = [(innerWidth - factor * WIDTH) / 2, (innerHeight - factor * HEIGHT) / 2];
  deck.style.transform = `translate(${left}px, ${top}px) scale(${factor})`;
}

function show(number, complete = false) {
  current = Math.min(Math.max(number, 0), slides.length - 1);
  slides.forEach((slide, index) => slide.classList.toggle("present", index === current));
  for (const part of slides[current].querySelectorAll(".fragment")) part.classList.toggle("shown", complete);
  counter.textContent = `${current + 1}/${slides.length}`;
  history.replaceState(null, "", `#${current + 1}`);
}

function forward() {
  const next = slides[current].querySelector(".fragment:not(.shown)");
  if (next) next.classList.add("shown");
  else if (current < slides.length - 1) show(current + 1);
}

const back = () => show(current - 1, true);
const chosen = () => show((parseInt(location.hash.slice(1)) || 1) - 1);
const fullscreen = () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen());
const KEYS = {
  " ": forward, ArrowRight: forward, ArrowDown: forward, PageDown: forward,
  ArrowLeft: back, ArrowUp: back, PageUp: back, Backspace: back,
  Home: () => show(0), End: () => show(slides.length - 1), f: fullscreen,
};

addEventListener("keydown", (event) => {
  const action = event.ctrlKey || event.altKey || event.metaKey ? null : KEYS[event.key];
  // Space and Enter on a button that has the focus press it.
  if (!action || (event.key === " " && event.target.closest("button"))) return;
  event.preventDefault();
  action();
});
document.querySelector("#back").addEventListener("click", back);
document.querySelector("#forward").addEventListener("click", forward);
addEventListener("resize", scale);
addEventListener("beforeprint", () => slides.forEach(fit)); // also of a browser that waits for nothing
addEventListener("hashchange", chosen);
addEventListener("load", async () => {
  await document.fonts.ready;
  slides.forEach(fit);
  scale();
  chosen();
  deck.classList.add("ready");
});
