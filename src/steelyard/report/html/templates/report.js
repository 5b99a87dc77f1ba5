"use strict";

/* Tables: a click on a heading sorts by its column, a second one the other way round. */
function number(text) {
  if (/^[+]?(∞|inf)/.test(text)) return Infinity;
  const match = text.replace(/[−–]/g, "-").match(/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?/i);
  return match ? parseFloat(match[0]) : NaN;
}

function sortBy(table, column, ascending) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => {
    const text = row.cells[column].textContent.trim();
    return { row, text, value: number(text) };
  });
  const filled = rows.filter((entry) => !["", "–", "-", "nan"].includes(entry.text));
  const numeric = filled.every((entry) => !Number.isNaN(entry.value));
  const sign = ascending ? 1 : -1;
  rows.sort((a, b) => {
    const missing = !filled.includes(a) - !filled.includes(b);
    if (missing) return missing;
    if (numeric) return a.value === b.value ? 0 : sign * (a.value < b.value ? -1 : 1);
    return sign * a.text.localeCompare(b.text, "en", { numeric: true });
  });
  body.append(...rows.map((entry) => entry.row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortBy(table, column, ascending);
    });
  });
}

/* The viewer: a subject's slices lie side by side in one picture, the masks as bits in another. */
const LAYERS = [
  { bit: 1, colour: [255, 211, 77], fill: 0.15 },
  { bit: 2, colour: [255, 122, 69], fill: 0.35 },
  { bit: 4, colour: [84, 170, 255], fill: 0.35 },
];
const STEP = 32; // between two values of a mask picture
const CANVAS_WIDTH = 720; // device-independent pixels across, for sharp edges of voxels

class Viewer {
  constructor(root, subjects) {
    this.root = root;
    this.subjects = subjects;
    this.canvas = root.querySelector("canvas.slice");
    this.profile = root.querySelector("canvas.profile");
    this.slider = root.querySelector("input[type=range]");
    this.subject = root.querySelector("select.subject");
    this.method = root.querySelector("select.method");
    this.layers = Array.from(root.querySelectorAll("input.layer"));
    this.loading = 0;
    this.subject.append(...subjects.map((subject, index) => new Option(subject.name, String(index))));
    this.subject.addEventListener("change", () => this.open());
    this.method.addEventListener("change", () => this.load());
    this.slider.addEventListener("input", () => this.draw());
    this.layers.forEach((box) => box.addEventListener("change", () => this.draw()));
    root.querySelector(".scan").addEventListener("change", () => this.load());
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.profile.addEventListener("pointerdown", (event) => this.jump(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.turned = 0;
    this.open();
  }

  get current() { return this.subjects[Number(this.subject.value)]; }

  open() {
    const subject = this.current;
    const chosen = this.method.value;
    const methods = Object.keys(subject.masks);
    this.method.replaceChildren(...methods.map((name) => new Option(name, name)));
    this.method.value = methods.includes(chosen) ? chosen : methods[methods.length - 1];
    this.fillScans(Object.keys(subject.scans));
    this.slider.max = String(subject.size[2] - 1);
    this.slider.value = String(subject.start);
    this.load();
  }

  fillScans(names) {
    const group = this.root.querySelector(".scan");
    const chosen = group.querySelector("input:checked")?.value;
    group.querySelectorAll("label").forEach((label) => label.remove());
    names.forEach((name, index) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "radio", name: "scan", value: name });
      input.checked = names.includes(chosen) ? name === chosen : index === 0;
      label.append(input, name);
      group.append(label);
    });
  }

  async load() {
    const turn = ++this.loading;
    const subject = this.current;
    this.root.dataset.state = "loading";
    const scan = this.root.querySelector(".scan input:checked").value;
    const [grey, mask] = await Promise.all([picture(subject.scans[scan]), picture(subject.masks[this.method.value])]);
    if (turn !== this.loading) return;
    this.grey = grey;
    this.bits = bitsOf(mask);
    this.draw();
    this.root.dataset.state = "ready";
  }

  wheel(event) {
    event.preventDefault();
    this.turned += event.deltaY;
    if (Math.abs(this.turned) < 30) return;
    this.go(Number(this.slider.value) - Math.sign(this.turned));
    this.turned = 0;
  }

  key(event) {
    const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 5, PageDown: -5 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.go(Number(this.slider.value) + by);
  }

  jump(event) {
    const box = this.profile.getBoundingClientRect();
    this.go(Math.floor(((event.clientX - box.left) / box.width) * this.current.size[2]));
  }

  go(slice) {
    this.slider.value = String(slice);
    this.draw();
  }

  draw() {
    if (!this.grey) return;
    const { size: [width, height, depth], columns, aspect, scores, name } = this.current;
    const slice = Number(this.slider.value);
    const left = (slice % columns) * width;
    const top = Math.floor(slice / columns) * height;
    const scale = Math.max(1, Math.round(CANVAS_WIDTH / width));
    this.canvas.width = width * scale;
    this.canvas.height = Math.round(height * scale * aspect);
    const context = this.canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(this.grey, left, top, width, height, 0, 0, this.canvas.width, this.canvas.height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.overlay(left, top, width, height), 0, 0, this.canvas.width, this.canvas.height);
    this.root.querySelector("output").textContent = `${slice + 1} of ${depth}`;
    this.canvas.setAttribute("aria-label", `${name}, slice ${slice + 1} of ${depth}`);
    const scored = Object.entries(scores[this.method.value]).filter(([, score]) => score !== null);
    this.root.querySelector(".dice").textContent =
      scored.map(([domain, score]) => `Dice from ${domain} ${score.toFixed(3)}`).join(" · ");
    this.drawProfile(slice);
    this.root.dataset.slice = String(slice);
  }

  overlay(left, top, width, height) {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(width, height);
    const { values, stride } = this.bits;
    const at = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? 0 : values[(top + y) * stride + left + x]);
    // The manual mask comes last, so that its outline stays in sight.
    const visible = LAYERS.filter((layer, index) => this.layers[index].checked).reverse();
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const value = at(x, y);
        if (!value) continue;
        for (const { bit, colour, fill } of visible) {
          if (!(value & bit)) continue;
          const inside = at(x - 1, y) & at(x + 1, y) & at(x, y - 1) & at(x, y + 1) & bit;
          blend(pixels.data, 4 * (y * width + x), colour, inside ? fill : 0.9);
        }
      }
    }
    context.putImageData(pixels, 0, 0);
    return canvas;
  }

  drawProfile(slice) {
    const { profile } = this.current;
    const style = getComputedStyle(this.root);
    const canvas = this.profile;
    canvas.width = 4 * profile.length;
    canvas.height = 48;
    const context = canvas.getContext("2d");
    const most = Math.max(...profile, 1);
    profile.forEach((count, index) => {
      const tall = count ? Math.max(3, (46 * count) / most) : 1;
      context.fillStyle = style.getPropertyValue(index === slice ? "--ink" : "--line");
      context.fillRect(4 * index, 48 - (index === slice ? Math.max(tall, 8) : tall), 3, 48);
    });
  }
}

function blend(data, offset, colour, opacity) {
  const under = data[offset + 3] / 255;
  const together = opacity + under * (1 - opacity);
  for (let part = 0; part < 3; part += 1) {
    data[offset + part] = (colour[part] * opacity + data[offset + part] * under * (1 - opacity)) / together;
  }
  data[offset + 3] = 255 * together;
}

async function picture(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

function bitsOf(image) {
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const values = new Uint8Array(image.width * image.height);
  for (let index = 0; index < values.length; index += 1) values[index] = Math.round(data[4 * index] / STEP);
  return { values, stride: image.width };
}

const viewer = document.querySelector(".viewer");
if (viewer) new Viewer(viewer, JSON.parse(document.getElementById("subject-data").textContent));
