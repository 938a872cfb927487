"use strict";
// Sends the state of the hands 30 times a second and at every change; silence is what stops the robot.
// What it shows is grey as soon as it is old: as old as it is at the robot, not since it arrived here.
const CAMERAS = 64, GHOST = 128, PERIOD = 33, NEWS_MS = 500, PICTURE_MS = 1000, DEAD_MS = 3000, ANSWER_MS = 1000;
const MOVES = ["resume", "reset", "toggle", "scene"];  // nobody frees a robot that they do not see
const at = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") || "";
const page = [...crypto.getRandomValues(new Uint32Array(2))].map((n) => n.toString(36)).join("");

let socket = null, sequence = 0, operator = false, state = null, pending = "", asking = false;
let news = -Infinity, drawn = -Infinity, trip = null, frames = 0, rate = 0, points = [], pictures = {}, speeds = [];
let sync = null, alive = -Infinity, dialed = -Infinity;  // the robot's clock and ours; when anything came; when we called
let over = false;  // the session has ended
let unanswered = null;  // a press of which the console has not said that it came
let shape = null;  // width and height of the large picture; between two of them the element knows none
let large = 0;  // number of the camera that is shown large
let sound = null, muted = false, alarmed = { help: "", fault: "" }, listed = "", replaying = null;

const open = () => socket !== null && socket.readyState === WebSocket.OPEN;
function send(message) { if (open()) socket.send(JSON.stringify(message)); }
function notice(text) { at("notice").textContent = text; }

function press(kind, episode = -1) {
  if (kind === "estop") {  // latched, so late is better than never
    pending = "estop";
    notice(open() ? "STOP sent" : "STOP not sent: no connection. It is sent as soon as there is one; use the hardware stop.");
    setTimeout(() => { if (pending) notice("STOP not confirmed: use the hardware stop. It is sent again until the robot hears it."); }, 400);
  } else if (over) {
    notice("Not done: the session has ended.");
    return;
  } else if (!open()) {
    notice("Not done: there is no connection.");
    return;
  } else if (!operator && kind !== "hold") {
    notice("Not done: this page watches. Take the seat first; STOP and hold work from here.");
    return;
  } else if (MOVES.includes(kind) && isStale()) {
    notice("Not done: there is no news of the robot. Press it again when there is.");
    return;
  }
  send({ type: "press", kind, episode, ...times() });
  if (kind !== "estop") unanswered = { kind, since: performance.now() };
}

// ------------------------------------------------------------ what time it is at the robot

function times() {
  const sent = performance.now();
  return sync === null ? { sent } : { sent, at: sent - sync.offset };
}

function told(echo) {  // the quickest answer knows best; it counts less as it grows old, for clocks drift
  const now = performance.now(), round = now - echo.sent;
  trip = round;
  if (sync === null || round < sync.round + (now - sync.when) / 1000) sync = { round, offset: now - round / 2 - echo.at, when: now };
}

function born(at) {
  const now = performance.now();
  return sync === null ? now : Math.min(now, at + sync.offset);
}

function limit() { return Math.max(NEWS_MS, state && state.hz ? 2500 / state.hz : 0); }
function isStale() { return performance.now() - news > limit(); }

const hands = new Hands(press, tick);
function tick() { if (operator) send({ type: "input", seq: sequence++, ...hands.read(), ...times() }); }

// ------------------------------------------------------------ what is told

function percent(x) { return x === null || x === undefined ? "–" : Math.round(100 * x) + " %"; }

function show(next) {
  state = next;
  news = born(state.at);
  if (pending === "estop" && state.driver === "STOPPED") { pending = ""; notice("STOP received: the robot is stopped."); }
  const driver = at("driver");
  driver.textContent = state.driver;
  driver.className = state.driver;
  at("phase").textContent = state.phase + (state.phase === "demonstration" ? ": " + state.demos + " stored" : "") +
    (state.pausing ? ", a pause after this episode" : "");
  const asks = state.scene !== null && state.scene !== undefined, stands = state.driver === "HOLD" || state.driver === "STOPPED";
  at("scene").hidden = !asks;
  at("crop").hidden = !(state.cameras && state.cameras.length);
  document.body.classList.toggle("scene", asks && stands);
  at("scene-word").textContent = asks && !stands && state.scene ? "Begun although " + state.scene + "." : "";
  const waits = state.driver === "HOLD" ? (state.busy ? "The robot holds; go does nothing yet." : "The robot holds. Press go.") : "";
  const locked = state.driver === "STOPPED" ? "Stopped. Unlock, then go." : "";
  at("problem").textContent = [waits, locked, state.help ? "Help wanted: " + state.help + "." : "", state.elicit, state.problem]
    .filter(Boolean).join(" ");
  if (hands.mode !== state.mode) {
    hands.mode = state.mode;
    at("drive-word").textContent = state.mode === "toggle" ? "take over, give back" : "hold to drive";
    at("how").textContent = state.mode === "toggle" ? "Press" : "Hold";
  }
  at("label").textContent = state.label ? "label: " + state.label : "";
  at("n-success").textContent = percent(state.success);
  at("n-alone").textContent = state.alone ? percent(state.alone[0]) + " (" + percent(state.alone[1]) + " to " + percent(state.alone[2]) + ") of " + state.alone[3] : "–";
  at("n-rate").textContent = percent(state.intervention_rate);
  at("n-human").textContent = state.human_seconds.toFixed(0) + " s";
  at("n-clock").textContent = state.clock === null ? "–" : state.clock.toFixed(1) + " s";
  at("n-steps").textContent = state.episodes + ", " + state.steps + (state.next_eval === null ? "" : ", trials in " + state.next_eval);
  speeds.push([news, state.updates]);
  while (speeds[0][0] < news - 5000) speeds.shift();
  const spent = (news - speeds[0][0]) / 1000;
  at("n-updates").textContent = state.updates + " updates" + (spent > 1 ? ", " + ((state.updates - speeds[0][1]) / spent).toFixed(1) + "/s" : "") +
    ", weights " + state.age_s.toFixed(1) + " s old, " + state.late + " late ticks";
  at("n-judge").textContent = percent(state.probability);
  at("n-buffers").textContent = Object.entries(state.buffers).map(([name, n]) => name + " " + n).join(", ");
  at("n-safety").textContent = ["OK", "clipped", "hold", "stop"][state.level] + (state.reasons.length ? ": " + state.reasons.join(", ") : "");
  const input = state.input_ms ? ", input " + state.input_ms[0] + " / " + state.input_ms[1] + " ms" : "";
  at("n-link").textContent = (trip === null ? "–" : trip.toFixed(0) + " ms round trip") + input + ", " + rate + " pictures/s";
  alarm("help", state.help ? "help" : "");
  alarm("fault", state.driver === "STOPPED" ? "stopped" : state.fault ? state.fault : "");
  list(state.list || []);
}

function figure(which) {  // what the policy sees: a picture, and over it the ghost of a good start
  const found = at("view-" + which);
  if (found) return found;
  const figure = document.createElement("figure"), word = document.createElement("figcaption"), frame = document.createElement("div");
  const screen = document.createElement("img"), ghost = document.createElement("img");
  screen.id = "view-" + which;
  ghost.id = "ghost-" + which;
  ghost.className = "ghost";
  ghost.hidden = true;
  word.id = "view-word-" + which;
  frame.append(screen, ghost);
  figure.append(frame, word);
  at("views").append(figure);
  return screen;
}

function thumbnail(number) {  // a camera; the one that is pressed is shown large
  const found = at("cam-" + number);
  if (found) return found;
  const figure = document.createElement("figure"), word = document.createElement("figcaption"), screen = document.createElement("img");
  screen.id = "cam-" + number;
  word.id = "cam-word-" + number;
  screen.addEventListener("click", () => { large = number; at("ghost-0").hidden = number !== 0; });
  figure.append(screen, word);
  at("cameras").append(figure);
  return screen;
}

function paint(bytes) {  // which (0 the large picture, others what the policy sees), when it was taken, a JPEG
  const which = bytes[0], taken = new DataView(bytes.buffer).getFloat64(1, true);
  const latest = URL.createObjectURL(new Blob([bytes.subarray(9)], { type: "image/jpeg" }));
  let screen = at("camera");
  const camera = which >= CAMERAS && which < GHOST ? which - CAMERAS : 0, names = state && state.cameras || [];
  if (names.length > 1 && (which === 0 || camera)) {
    thumbnail(camera).src = latest;
    at("cam-word-" + camera).textContent = names[camera] || "";
  }
  if (camera && camera !== large || which === 0 && large) screen = null;
  else if (camera || which === 0) { frames++; drawn = born(taken); }
  else if (which >= GHOST) {
    if (which > GHOST) figure(which - GHOST);
    screen = at("ghost-" + (which - GHOST));
    screen.hidden = which === GHOST && large !== 0;
  } else {
    screen = figure(which);
    at("view-word-" + which).textContent = "the policy sees: " + (state && state.views[which - 1] || "camera " + which);
  }
  if (screen) screen.src = latest;
  if (pictures[which]) URL.revokeObjectURL(pictures[which]);
  pictures[which] = latest;
}

function fresh() {  // ten times a second: what is old must not look live
  const now = performance.now(), quiet = now - news, stale = isStale();
  if (now - Math.max(alive, dialed) > DEAD_MS) connect();  // a connection that nobody closed, and nothing comes from
  if (unanswered && now - unanswered.since > ANSWER_MS) {
    notice("Not done, as far as this page knows: '" + unanswered.kind + "' has had no answer. Press it again.");
    unanswered = null;
  }
  document.body.classList.toggle("stale", stale);
  at("news").textContent = stale ? (Number.isFinite(quiet) ? "no news for " + (quiet / 1000).toFixed(1) + " s" : "no news yet") : "";
  if (stale) {
    at("driver").textContent = over ? "ENDED" : open() && state ? "NO NEWS" : "OFFLINE";
    at("driver").className = "OFFLINE";
    if (state && state.driver !== "HOLD" && !over) alarm("fault", "no news");
  }
  const age = now - drawn;
  at("age").textContent = Number.isFinite(age) && age > (stale ? limit() : PICTURE_MS) ? "picture " + (age / 1000).toFixed(1) + " s old" : "";
  at("frame").classList.toggle("old", at("age").textContent !== "");
}

// ------------------------------------------------------------ a part of a picture, as the setting that cuts it out

function cut() {  // drag a rectangle over the large picture
  const frame = at("frame"), box = at("crop-box");
  let begin = null;
  at("camera").addEventListener("load", () => { shape = [at("camera").naturalWidth, at("camera").naturalHeight]; });
  const place = (event) => {  // as shares of the picture, which is fitted into its element
    const camera = at("camera"), rect = camera.getBoundingClientRect();
    const scale = Math.min(rect.width / shape[0], rect.height / shape[1]), w = shape[0] * scale, h = shape[1] * scale;
    const x = (event.clientX - rect.left - (rect.width - w) / 2) / w, y = (event.clientY - rect.top - (rect.height - h) / 2) / h;
    const outer = frame.getBoundingClientRect();
    return { x: Math.min(1, Math.max(0, x)), y: Math.min(1, Math.max(0, y)), px: event.clientX - outer.left, py: event.clientY - outer.top };
  };
  frame.addEventListener("pointerdown", (event) => {
    if (!at("crop").classList.contains("on") || !shape) return;
    frame.setPointerCapture(event.pointerId);
    event.preventDefault();
    begin = place(event);
  });
  frame.addEventListener("pointermove", (event) => {
    if (!begin) return;
    const end = place(event), shares = [Math.min(begin.x, end.x), Math.min(begin.y, end.y), Math.max(begin.x, end.x), Math.max(begin.y, end.y)];
    box.hidden = false;
    box.style.left = Math.min(begin.px, end.px) + "px";
    box.style.top = Math.min(begin.py, end.py) + "px";
    box.style.width = Math.abs(begin.px - end.px) + "px";
    box.style.height = Math.abs(begin.py - end.py) + "px";
    at("crop-word").textContent = "+env.crop." + (state.cameras[large] || "camera") + "=[" + shares.map((x) => x.toFixed(3)).join(",") + "]";
  });
  for (const kind of ["pointerup", "pointercancel"]) frame.addEventListener(kind, () => { begin = null; });
  at("crop").addEventListener("click", () => {
    const on = at("crop").classList.toggle("on");
    box.hidden = true;
    at("crop-word").textContent = on ? "Drag a rectangle over the picture." : "";
  });
}

function alarm(name, what) {
  if (what && what !== alarmed[name]) tone(name === "help" ? [880, 1175] : [440, 220, 440, 220]);
  alarmed[name] = what;
}

function tone(pitches) {
  if (!sound || muted) return;
  pitches.forEach((pitch, i) => {
    const voice = sound.createOscillator(), volume = sound.createGain(), begin = sound.currentTime + 0.18 * i;
    voice.frequency.value = pitch;
    volume.gain.value = 0.15;
    voice.connect(volume).connect(sound.destination);
    voice.start(begin);
    voice.stop(begin + 0.15);
  });
}
// browsers play nothing before the first key or touch
for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, () => { sound = sound || new AudioContext(); sound.resume(); });

function list(lines) {
  const text = JSON.stringify([lines, operator]);
  if (text === listed) return;
  listed = text;
  at("episodes").replaceChildren(...lines.map((line) => {
    const row = document.createElement("tr"), cell = (content) => { const td = document.createElement("td"); td.append(content); row.append(td); };
    row.id = "episode-" + line.episode;
    row.className = line.success ? "good" : "";
    cell(String(line.episode));
    cell((line.demo ? "demonstration, " : "") + line.end + (line.label ? ", you: " + line.label : ""));
    cell(line.steps + " steps, " + percent(line.human) + " yours");
    const act = document.createElement("span");
    for (const [kind, word] of [["success", "success"], ["failure", "failure"], ["undo", "undo"]]) {
      const button = document.createElement("button");
      button.textContent = word;
      button.dataset.kind = kind;
      button.disabled = !operator;
      button.addEventListener("click", () => press(kind, line.episode));
      act.append(button);
    }
    if (line.pictures) {
      const button = document.createElement("button");
      button.textContent = "replay";
      button.dataset.kind = "replay";
      button.addEventListener("click", () => replay(line.episode, line.pictures));
      act.append(button);
    }
    cell(act);
    return row;
  }));
}

function replay(episode, count) {
  clearInterval(replaying);
  let number = 0;
  const screen = at("replay");
  screen.hidden = false;
  at("replay-word").textContent = "replay of episode " + episode;
  const turn = () => {
    screen.src = "replay/" + episode + "/" + number + "?token=" + encodeURIComponent(token);
    number++;
    if (number >= count) clearInterval(replaying);
  };
  turn();
  replaying = setInterval(turn, 120);
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

// ------------------------------------------------------------ the link

function role(message) {
  if (operator && !message.operator) hands.release();
  operator = message.operator;
  if (operator) asking = false;
  at("link").textContent = operator
    ? "you are the operator" + (message.asked ? "; another page asks for the seat" : "")
    : message.free ? "viewer: nobody drives" : asking ? "viewer: you have asked for the seat" : "viewer: somebody else drives";
  at("take").hidden = operator;
  at("hand").hidden = !operator || message.pages < 2;
  at("hand").classList.toggle("on", message.asked);
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss://" : "ws://", before = socket;
  const mine = new WebSocket(scheme + location.host + "/socket?token=" + encodeURIComponent(token) + "&page=" + page);
  socket = mine;
  dialed = performance.now();
  if (before !== null) { before.close(); lost(); }
  mine.binaryType = "arraybuffer";
  let opened = false;
  mine.onopen = () => {
    opened = true;
    if (mine !== socket) return;
    hands.release(); sequence = 0; points = []; speeds = []; sync = null; over = false;
    if (pending) press(pending);
    ping();
  };
  mine.onmessage = (event) => {
    if (mine !== socket) return;
    alive = performance.now();
    if (event.data instanceof ArrayBuffer) { paint(new Uint8Array(event.data)); send({ type: "seen" }); return; }
    const message = JSON.parse(event.data);
    if (message.type === "state") show(message);
    else if (message.type === "echo") { told(message); if (message.kind) heard(message.kind); }
    else if (message.type === "refused") { unanswered = null; notice("Not done: " + message.why); }
    else if (message.type === "history") { points.push(...message.points); draw(); }
    else if (message.type === "role") role(message);
    else if (message.type === "over") { over = true; notice("The session has ended; the terminal says how it went."); }
  };
  mine.onclose = () => {
    if (mine !== socket) return;
    socket = null;
    lost();
    if (!opened) asked();
    setTimeout(() => { if (socket === null) connect(); }, 500);
  };
}

function asked() {  // a socket that was refused does not say why; the page itself does
  fetch("/?token=" + encodeURIComponent(token), { cache: "no-store" }).then((answer) => {
    if (answer.status === 403 && !open())
      notice("Refused: this page is of another session. Open the address that robot-rl printed last: it holds the token.");
  }).catch(() => {});  // nobody listens there: the header says so
}

function lost() {
  operator = false; asking = false;
  hands.release();
  at("driver").textContent = over ? "ENDED" : "OFFLINE"; at("driver").className = "OFFLINE";
  at("link").textContent = over ? "the session has ended" : "connection lost, trying again";
}

function ping() { send({ type: "ping", sent: performance.now() }); }

function heard(kind) {  // by the console; a stop counts when the robot says that it stands
  if (unanswered && unanswered.kind === kind) unanswered = null;
  if (kind !== "estop") notice("");
  else if (pending) notice("STOP has reached the console; the robot has not confirmed it yet");
}

for (const button of document.querySelectorAll("[data-press]")) {
  button.addEventListener("pointerdown", () => press(button.dataset.press));
  button.addEventListener("click", (event) => {
    if (event.detail === 0) press(button.dataset.press);  // Tab and Enter
    else button.blur();
  });
}
at("take").addEventListener("click", () => { asking = true; send({ type: "seat", do: "take" }); });
at("hand").addEventListener("click", () => send({ type: "seat", do: "hand" }));
at("mute").addEventListener("click", () => { muted = !muted; at("mute").textContent = muted ? "sound is off" : "sound is on"; });
at("slower").addEventListener("click", () => hands.speed(hands.factor - 0.1));
at("faster").addEventListener("click", () => hands.speed(hands.factor + 0.1));
cut();
setInterval(tick, PERIOD);
setInterval(fresh, 100);
setInterval(ping, 500);
setInterval(() => { rate = frames; frames = 0; }, 1000);
draw();
connect();
