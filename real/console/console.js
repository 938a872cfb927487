"use strict";
// Sends the state of keys, buttons and gamepad 30 times a second; silence is what stops the robot.
const PERIOD = 33;
const KEYS = {
  KeyW: ["x", 1], KeyS: ["x", -1], KeyA: ["y", 1], KeyD: ["y", -1], KeyR: ["z", 1], KeyF: ["z", -1],
  KeyQ: ["yaw", 1], KeyE: ["yaw", -1], KeyO: ["grip", 1], KeyC: ["grip", -1],
};
const PRESSES = {
  Escape: "estop", KeyG: "resume", KeyH: "hold", KeyU: "reset", Digit1: "success", Digit0: "failure",
  Numpad1: "success", Numpad0: "failure", Backspace: "rerecord", KeyM: "mark",
};
// standard gamepad: 5 right shoulder, 0 A, 1 B, 2 X, 3 Y, 8 back, 9 start, 12 and 13 the cross
const PAD_PRESSES = { 0: "success", 1: "failure", 2: "rerecord", 3: "mark", 8: "estop", 9: "resume" };

const token = new URLSearchParams(location.search).get("token") || "";
const at = (id) => document.getElementById(id);
const held = new Set();
let pointer = false, padDown = new Set(), socket = null, sequence = 0, operator = false;
let trip = null, frames = 0, rate = 0, points = [], picture = null;

function send(message) {
  if (socket && socket.readyState === WebSocket.OPEN && operator) socket.send(JSON.stringify(message));
}
function press(kind) { send({ type: "press", kind }); }
function release() { held.clear(); pointer = false; at("drive").classList.remove("on"); }

function pad() {
  const found = [...(navigator.getGamepads ? navigator.getGamepads() : [])].find((one) => one && one.connected);
  at("pad").textContent = found ? "gamepad: " + found.id.slice(0, 40) : "";
  if (!found) { padDown = new Set(); return null; }
  const down = new Set(found.buttons.map((b, i) => (b.pressed ? i : -1)).filter((i) => i >= 0));
  for (const i of down) if (!padDown.has(i) && PAD_PRESSES[i]) press(PAD_PRESSES[i]);
  padDown = down;
  const a = (i) => found.axes[i] || 0;
  const axes = { x: -a(1), y: -a(0), z: -a(3), yaw: -a(2), grip: (down.has(12) ? 1 : 0) - (down.has(13) ? 1 : 0) };
  return { axes, enable: down.has(5) };
}

function tick() {
  const axes = {};
  for (const code of held) if (KEYS[code]) axes[KEYS[code][0]] = (axes[KEYS[code][0]] || 0) + KEYS[code][1];
  const game = pad();
  if (game) for (const [name, value] of Object.entries(game.axes)) if (!axes[name]) axes[name] = value;
  const enable = held.has("Space") || pointer || Boolean(game && game.enable);
  at("drive").classList.toggle("on", enable);
  send({ type: "input", seq: sequence++, axes, enable, sent: performance.now() });
}

function show(state) {
  const driver = at("driver");
  driver.textContent = state.driver;
  driver.className = state.driver;
  at("phase").textContent = state.phase + (state.phase === "demonstration" ? ": " + state.demos + " stored" : "");
  const waits = state.driver === "HOLD" ? "The robot holds. Press go." : "";
  const locked = state.driver === "STOPPED" ? "Stopped. Unlock, then go." : "";
  at("problem").textContent = [waits, locked, state.help ? "Help wanted: " + state.help + "." : "", state.elicit, state.problem]
    .filter(Boolean).join(" ");
  const percent = (x) => (x === null || x === undefined ? "–" : Math.round(100 * x) + " %");
  at("n-success").textContent = percent(state.success);
  at("n-rate").textContent = percent(state.intervention_rate);
  at("n-human").textContent = state.human_seconds.toFixed(0) + " s";
  at("n-steps").textContent = state.episodes + ", " + state.steps;
  at("n-updates").textContent = state.updates + " updates, " + state.late + " late ticks";
  at("n-buffers").textContent = Object.entries(state.buffers).map(([name, n]) => name + " " + n).join(", ");
  at("n-safety").textContent = ["OK", "clipped", "hold", "stop"][state.level] + (state.reasons.length ? ": " + state.reasons.join(", ") : "");
  const input = state.input_ms ? ", input " + state.input_ms[0] + " / " + state.input_ms[1] + " ms" : "";
  at("n-link").textContent = (trip === null ? "–" : trip.toFixed(0) + " ms round trip") + input + ", " + rate + " pictures/s";
}

function draw() {
  const canvas = at("curve"), pen = canvas.getContext("2d"), w = canvas.width, h = canvas.height;
  pen.clearRect(0, 0, w, h);
  pen.strokeStyle = "#263140"; pen.fillStyle = "#9fb0c4"; pen.font = "11px system-ui";
  for (const y of [0, 0.5, 1]) {
    const py = h - 16 - y * (h - 28);
    pen.beginPath(); pen.moveTo(30, py); pen.lineTo(w - 6, py); pen.stroke(); pen.fillText(100 * y + "%", 1, py + 4);
  }
  if (!points.length) return;
  const last = Math.max(points[points.length - 1].episodes, 2);
  pen.fillText("episode " + last, w - 70, h - 3);
  for (const [name, colour] of [["success", "#4cc27f"], ["intervention_rate", "#f0a830"]]) {
    pen.strokeStyle = colour; pen.lineWidth = 2; pen.beginPath();
    points.forEach((p, i) => {
      const px = 30 + (p.episodes / last) * (w - 38), py = h - 16 - (p[name] || 0) * (h - 28);
      if (i) pen.lineTo(px, py); else pen.moveTo(px, py);
    });
    pen.stroke();
  }
  pen.lineWidth = 1;
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss://" : "ws://";
  socket = new WebSocket(scheme + location.host + "/socket?token=" + encodeURIComponent(token));
  socket.binaryType = "blob";
  socket.onopen = () => { release(); sequence = 0; points = []; };
  socket.onmessage = (event) => {
    if (event.data instanceof Blob) {
      const fresh = URL.createObjectURL(event.data);
      at("camera").src = fresh;
      if (picture) URL.revokeObjectURL(picture);
      picture = fresh; frames++;
      return;
    }
    const message = JSON.parse(event.data);
    if (message.type === "state") show(message);
    else if (message.type === "echo") trip = performance.now() - message.sent;
    else if (message.type === "history") { points.push(...message.points); draw(); }
    else if (message.type === "role") { operator = message.operator; at("link").textContent = operator ? "you are the operator" : "viewer: somebody else drives"; }
  };
  socket.onclose = () => {
    operator = false; release();
    at("driver").textContent = "OFFLINE"; at("driver").className = "OFFLINE";
    at("link").textContent = "connection lost, trying again";
    setTimeout(connect, 500);
  };
}

addEventListener("keydown", (event) => {
  if (PRESSES[event.code]) { if (!event.repeat) press(PRESSES[event.code]); event.preventDefault(); }
  else if (KEYS[event.code] || event.code === "Space") { held.add(event.code); event.preventDefault(); }
});
addEventListener("keyup", (event) => held.delete(event.code));
addEventListener("blur", release);
document.addEventListener("visibilitychange", () => { if (document.hidden) release(); });
for (const button of document.querySelectorAll("[data-press]")) {
  button.addEventListener("pointerdown", () => { press(button.dataset.press); });
  button.addEventListener("click", () => button.blur());
}
at("drive").addEventListener("pointerdown", () => { pointer = true; });
addEventListener("pointerup", () => { pointer = false; });
addEventListener("pointercancel", () => { pointer = false; });
setInterval(tick, PERIOD);
setInterval(() => { rate = frames; frames = 0; }, 1000);
draw();
connect();
