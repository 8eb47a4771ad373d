"use strict";

/* Loads the figures with the API key of the field. The key is kept in the storage of the tab, which the tab's end removes. */

const KEY = "turnstile-api-key";
const byId = (id) => document.getElementById(id);

async function show() {
  const key = byId("api-key").value.trim();
  let error = "";
  try {
    const response = await fetch("/", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    document.querySelector("main").replaceChildren(...page.querySelector("main").childNodes);
    document.querySelector("header").replaceChildren(...page.querySelector("header").childNodes);
    error = key && byId("locked") ? "The server does not know this key." : "";
  } catch (failure) {
    error = `The figures could not be loaded: ${failure.message}`;
  }
  if (key && !error) {
    sessionStorage.setItem(KEY, key);
  } else if (!key) {
    sessionStorage.removeItem(KEY);
  }
  byId("key-error").textContent = error;
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  show();
});
byId("forget").addEventListener("click", () => {
  byId("api-key").value = "";
  show();
});
addEventListener("DOMContentLoaded", () => {
  byId("api-key").value = sessionStorage.getItem(KEY) || "";
  if (byId("api-key").value) {
    show();
  }
});
