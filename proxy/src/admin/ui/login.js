// Log in as an ACL user. The node keeps the session; this page keeps nothing.

import { post } from "/ui/api.js";
import { h, update } from "/ui/dom.js";
import { field } from "/ui/locks.js";
import { trouble } from "/ui/parts.js";

export const title = "Log in";

export function mount({ root, who, entered }) {
  const message = h("div", null);
  const user = h("input", { id: "user", name: "username", type: "text", autocomplete: "username", required: true, value: who.user || "default", spellcheck: "false" });
  const password = h("input", { id: "password", name: "password", type: "password", autocomplete: "current-password" });
  const submit = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h("form", { class: "login panel" },
    h("p", { class: "hint" }, who.login_needed ? "This node asks for a user. Users and passwords are those of the ACL file, as for AUTH." : who.logged_in ? "You are logged in. Log in as another user to act as that one." : "You look at this node without a login. Log in as a user with more rights to act."),
    field("user", "User", user), field("password", "Password", password), message, submit);
  form.onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await post("login", { user: user.value, password: password.value });
      password.value = "";
      await entered();
    } catch (error) {
      update(message, trouble(error.status === 401 ? { code: "Wrong", message: "user or password. Try again; repeated failures are slowed down." } : error));
      submit.disabled = false;
      password.focus();
      password.select();
    }
  };
  root.append(form);
}
