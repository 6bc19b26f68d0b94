// Ids: names that nobody else has.

/** Also where `crypto.randomUUID` is missing, as on a page that is not secure. */
export const newId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");
