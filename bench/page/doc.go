// Package page tests the proxy's status page in a real browser: headless Chromium, which `make
// test` fetches from Debian without installing it. It is a module of its own, so the proxy does not
// depend on the browser's driver.
package page
