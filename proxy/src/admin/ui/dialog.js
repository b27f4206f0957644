// Asks for a reason before an action; the reason goes to the audit log.

import { h, update } from "/ui/dom.js";
import { trouble } from "/ui/parts.js";

const REASON_BYTES_MAX = 256;

/**
 * Shows the dialog. `run(reason)` does the action; what it throws is shown in the dialog, which stays open.
 * Resolves with what `run` returned, or null where the person thought better of it.
 */
export function confirm({ title, text, button, run }) {
  return new Promise((resolve) => {
    let result = null;
    const message = h("div", { class: "dialog-message" });
    const reason = h("input", { id: "reason", name: "reason", type: "text", autocomplete: "off", required: true, maxlength: REASON_BYTES_MAX, "aria-describedby": "reason-hint" });
    const submit = h("button", { type: "submit", class: "danger" }, button);
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      h(
        "form",
        { method: "dialog", novalidate: true },
        h("h2", { id: "dialog-title" }, title),
        h("div", { class: "dialog-text" }, text),
        h("label", { for: "reason" }, "Reason"),
        reason,
        h("p", { class: "hint", id: "reason-hint" }, "Goes to the audit log with your user name."),
        message,
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit),
      ),
    );
    dialog.querySelector("form").addEventListener("submit", async (event) => {
      event.preventDefault();
      const given = reason.value.trim();
      const size = new TextEncoder().encode(given).length;
      if (size === 0 || size > REASON_BYTES_MAX) {
        update(message, h("p", { class: "notice bad", role: "alert" }, size === 0 ? "Give a reason: the next person on duty will want to know." : `The reason is longer than ${REASON_BYTES_MAX} bytes.`));
        reason.setAttribute("aria-invalid", "true");
        reason.focus();
        return;
      }
      submit.disabled = true;
      try {
        result = await run(given);
        dialog.close();
      } catch (error) {
        update(message, trouble(error));
        submit.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    reason.focus();
  });
}
