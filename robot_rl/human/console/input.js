"use strict";
// Hands: keys, touch pads, mouse and gamepad become named axes in [-1, 1] and a dead-man.
const KEYS = {
  KeyW: ["x", 1], KeyS: ["x", -1], KeyA: ["y", 1], KeyD: ["y", -1], KeyR: ["z", 1], KeyF: ["z", -1],
  KeyQ: ["yaw", 1], KeyE: ["yaw", -1], KeyI: ["pitch", 1], KeyK: ["pitch", -1], KeyJ: ["roll", 1], KeyL: ["roll", -1],
  KeyO: ["grip", 1], KeyC: ["grip", -1],
};
const PRESSES = {
  Escape: "estop", KeyG: "resume", KeyH: "hold", KeyU: "reset", Digit1: "success", Digit0: "failure",
  Numpad1: "success", Numpad0: "failure", Backspace: "rerecord", KeyZ: "undo", KeyP: "pause", KeyN: "scene",
};
const SPEEDS = { Minus: -1, NumpadSubtract: -1, Equal: 1, NumpadAdd: 1 };
// standard gamepad: 5 right shoulder, 0 A, 1 B, 2 X, 3 Y, 8 back, 9 start, 10 left stick pressed, 16 guide,
// 12 and 13 the cross; 4, the left shoulder, turns the right stick into roll and pitch
const PAD_PRESSES = { 0: "success", 1: "failure", 2: "rerecord", 3: "undo", 8: "estop", 9: "resume", 10: "reset", 16: "reset" };

class Hands {
  // press(kind): a discrete key; moved(): axes or dead-man changed, to be sent at once
  constructor(press, moved) {
    this.press = press;
    this.moved = moved;
    this.mode = "deadman";
    this.factor = 1;
    this.held = new Set();
    this.touched = {};
    this.pointer = false;
    this.padDown = new Set();
    this.last = 0;
    addEventListener("keydown", (event) => this.keyDown(event));
    addEventListener("keyup", (event) => { if (this.held.delete(event.code)) this.moved(); });
    addEventListener("blur", () => this.release());
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.release(); });
    const drive = at("drive");
    drive.addEventListener("pointerdown", () => {
      if (this.mode === "toggle") this.press("toggle"); else { this.pointer = true; this.moved(); }
    });
    for (const kind of ["pointerup", "pointercancel"])
      addEventListener(kind, () => { if (this.pointer) { this.pointer = false; this.moved(); } });
    for (const button of document.querySelectorAll("[data-axis]")) this.hold(button);
    for (const pad of document.querySelectorAll(".pad")) this.pad(pad);
  }

  keyDown(event) {
    const code = event.code;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (PRESSES[code]) { if (!event.repeat) this.press(PRESSES[code]); event.preventDefault(); }
    else if (SPEEDS[code]) { this.speed(this.factor + 0.1 * SPEEDS[code]); event.preventDefault(); }
    else if (code === "Space" && this.mode === "toggle") { if (!event.repeat) this.press("toggle"); event.preventDefault(); }
    else if (KEYS[code] || code === "Space") {
      event.preventDefault();
      if (!this.held.has(code)) { this.held.add(code); this.moved(); }
    }
  }

  speed(value) {
    this.factor = Math.min(1, Math.max(0.1, Math.round(10 * value) / 10));
    at("speed").textContent = Math.round(100 * this.factor) + " %";
    this.moved();
  }

  hold(button) {  // a button that is an axis while it is held, such as open and close
    const [name, value] = button.dataset.axis.split(":");
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      this.touched[name] = Number(value);
      this.moved();
    });
    for (const kind of ["pointerup", "pointercancel", "lostpointercapture"])
      button.addEventListener(kind, () => { delete this.touched[name]; this.moved(); });
  }

  pad(pad) {  // touching it holds the dead-man; how far from its middle is the speed
    const knob = pad.firstElementChild, [across, up] = pad.dataset.axes.split(" ");
    const set = (event) => {
      const box = pad.getBoundingClientRect(), cut = (v) => Math.min(1, Math.max(-1, v));
      const right = cut((event.clientX - box.left) / box.width * 2 - 1), top = cut(1 - (event.clientY - box.top) / box.height * 2);
      this.touched[across] = -right;
      this.touched[up] = top;
      knob.style.transform = `translate(${50 * right}%, ${-50 * top}%)`;
      if (performance.now() - this.last > 15) this.moved();
    };
    pad.addEventListener("pointerdown", (event) => { pad.setPointerCapture(event.pointerId); pad.classList.add("on"); this.last = 0; set(event); });
    pad.addEventListener("pointermove", (event) => { if (pad.classList.contains("on")) set(event); });
    for (const kind of ["pointerup", "pointercancel", "lostpointercapture"])
      pad.addEventListener(kind, () => {
        pad.classList.remove("on");
        delete this.touched[across];
        delete this.touched[up];
        knob.style.transform = "";
        this.moved();
      });
  }

  release() {
    this.held.clear();
    this.touched = {};
    this.pointer = false;
    for (const pad of document.querySelectorAll(".pad.on")) pad.classList.remove("on");
    this.moved();
  }

  gamepad() {
    const found = [...(navigator.getGamepads ? navigator.getGamepads() : [])].find((one) => one && one.connected);
    at("pad").textContent = found ? "gamepad: " + found.id.slice(0, 40) : "";
    if (!found) { this.padDown = new Set(); return null; }
    const down = new Set(found.buttons.map((b, i) => (b.pressed ? i : -1)).filter((i) => i >= 0));
    for (const i of down) if (!this.padDown.has(i)) {
      if (PAD_PRESSES[i]) this.press(PAD_PRESSES[i]);
      else if (i === 5 && this.mode === "toggle") this.press("toggle");
    }
    this.padDown = down;
    const a = (i) => found.axes[i] || 0, turn = down.has(4);
    const axes = { x: -a(1), y: -a(0), grip: (down.has(12) ? 1 : 0) - (down.has(13) ? 1 : 0) };
    return { axes: turn ? { ...axes, roll: -a(2), pitch: -a(3) } : { ...axes, yaw: -a(2), z: -a(3) }, enable: down.has(5) };
  }

  // what is sent
  read() {
    this.last = performance.now();
    const axes = { ...this.touched };
    for (const code of this.held) if (KEYS[code]) axes[KEYS[code][0]] = (axes[KEYS[code][0]] || 0) + KEYS[code][1];
    const game = this.gamepad();
    if (game) for (const [name, value] of Object.entries(game.axes)) if (!axes[name]) axes[name] = value;
    const touching = document.querySelector(".pad.on") !== null;
    const enable = this.held.has("Space") || this.pointer || touching || Boolean(game && game.enable);
    at("drive").classList.toggle("on", enable);
    return { axes, enable, factor: this.factor };
  }
}
