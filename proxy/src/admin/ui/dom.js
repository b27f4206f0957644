// Builds and updates elements. Whatever comes from the server gets in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function build(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An HTML element: `h("p", {class: "x", onclick: f}, "text", [nodes])`. */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onkeydown", "onpointermove", "onpointerleave"];

/**
 * Makes the children of `root` equal to `nodes`, keeping the elements that are there: focus, selection, scrolling and
 * opened details stay as they are while numbers change.
 */
export function update(root, ...nodes) {
  const wanted = document.createElement("div");
  append(wanted, nodes);
  morphChildren(root, wanted);
}

function morphChildren(old, wanted) {
  const fresh = [...wanted.childNodes];
  const present = [...old.childNodes];
  const keyed = new Map();
  for (const node of present) if (node.dataset && node.dataset.key) keyed.set(node.dataset.key, node);
  fresh.forEach((node, index) => {
    const at = old.childNodes[index] || null;
    const key = node.dataset && node.dataset.key;
    const match = key ? keyed.get(key) : at;
    if (match && alike(match, node)) {
      if (match !== at) old.insertBefore(match, at);
      morph(match, node);
    } else {
      old.insertBefore(node, at);
    }
  });
  while (old.childNodes.length > fresh.length) old.lastChild.remove();
}

function alike(a, b) {
  if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) return false;
  if (a.nodeType !== Node.ELEMENT_NODE) return true;
  return (a.dataset.key || "") === (b.dataset.key || "");
}

function morph(old, wanted) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (name === "open" && old.nodeName === "DETAILS") continue;
    if (!wanted.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) old[name] = wanted[name];
  if ("disabled" in wanted && old.disabled !== wanted.disabled) old.disabled = wanted.disabled;
  if (old.hasAttribute("data-own")) return; // looks after its own children
  morphChildren(old, wanted);
}
